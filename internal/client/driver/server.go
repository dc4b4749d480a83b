package driver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// server is the connection to one server: one link after the other.
type server struct {
	owner *Shared
	addr  string
	link  atomic.Pointer[link] // nil while there is none

	mu        sync.Mutex
	attempt   *attempt // to connect, under way
	failures  int      // attempts in a row that came to nothing
	notBefore time.Time
	leaves    int       // connections given up in a row because of what their servers said
	left      time.Time // when the last one was
	closed    bool
}

// attempt is shared by all who need a connection meanwhile.
type attempt struct {
	done chan struct{}
	link *link
	err  error
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if k := s.link.Load(); k != nil {
		k.fail(ErrClosed)
	}
}

// exchange sends one command and waits for its reply. It returns the call that is under way where ctx ends first.
func (s *server) exchange(ctx context.Context, one *call) (protocol.Reply, *call, error) {
	if err := s.submit(ctx, one); err != nil {
		one.free()
		return protocol.Reply{Kind: protocol.Silence}, nil, err
	}
	reply, left, err := s.wait(ctx, one)
	if left == abandonedCall {
		return reply, one, nil
	}
	return reply, nil, err
}

// batch is Shared's Batch for what one server has.
func (s *server) batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	type place struct {
		call *call
		err  error
	}
	window := min(len(commands), max(s.owner.opts.Bound/2, 1))
	places := make([]place, window)
	for next, i := 0, 0; i < len(commands); i++ {
		for ; next < len(commands) && next-i < window; next++ {
			one := s.owner.calls.get()
			one.batched = true
			if err := one.request.Of(&commands[next]); err != nil {
				panic(err) // a batch is made by this module: an op without a wire form is a programming error
			}
			places[next%window] = place{one, s.submit(ctx, one)}
		}
		at := places[i%window]
		if at.err != nil {
			at.call.free()
			each(i, protocol.Reply{Kind: protocol.Silence}, at.err)
			continue
		}
		reply, err := s.settle(ctx, at.call)
		each(i, reply, err)
	}
}

// resubmissions bounds how often a command is sent again that has not run. The connection broke before its turn, or the
// server does not know the script.
const resubmissions = 3

// settle waits for the reply of a call that was submitted. The call is over when it returns, whatever
// becomes of the command.
func (s *server) settle(ctx context.Context, one *call) (protocol.Reply, error) {
	reply, left, err := s.wait(ctx, one)
	if left == abandonedCall {
		return protocol.Reply{Kind: protocol.Silence}, context.Cause(ctx)
	}
	return reply, err
}

// wait waits for the reply of a call that was submitted. Unless it returns abandonedCall, the call is
// over; then it is under way on its link, and may be waited for again.
func (s *server) wait(ctx context.Context, one *call) (protocol.Reply, progress, error) {
	silence := protocol.Reply{Kind: protocol.Silence}
	var patience topology.Patience
	for tries := 1; ; tries++ {
		left := one.link.await(ctx, one)
		switch left {
		case withdrawn: // the writer frees it
			return silence, left, NotSent{Cause: context.Cause(ctx)}
		case abandonedCall:
			return silence, left, nil
		}
		switch {
		case s.owner.opts.Servers == nil && !one.misled && one.elsewhere() && s.leave(one.link):
			one.misled = true
			refused := one.err
			one.renew()
			if s.submit(ctx, one) == nil {
				continue
			}
			one.err = refused
		case topology.IsBusy(one.err):
			if !patience.Wait(ctx, s.owner.opts.ReplyTimeout) {
				if ctx.Err() != nil {
					one.err = NotSent{Cause: context.Cause(ctx)} // it has not run
				}
				break
			}
			one.renew()
			err := s.submit(ctx, one) // from here on its fields are the link's, unless there is an error
			if err == nil {
				tries--
				continue
			}
			one.err = err
		case !one.unrun():
		case tries > resubmissions:
			one.err = NotSent{Cause: one.err}
		default:
			one.renew()
			err := s.submit(ctx, one)
			if err == nil {
				continue
			}
			one.err = err
		}
		reply, err := wire.Translate(one.raw, one.request.Explain(one.err))
		one.free()
		return reply, answered, err
	}
}

// submit puts a call into the queue of a connection. An error matches ErrNotSent; the call is still the
// caller's then.
func (s *server) submit(ctx context.Context, one *call) error {
	if ctx.Err() != nil {
		return NotSent{Cause: context.Cause(ctx)}
	}
	for range resubmissions {
		k := s.link.Load()
		if k == nil {
			var err error
			if k, err = s.connect(ctx); err != nil {
				return NotSent{Cause: err}
			}
		}
		ok, err := k.submit(ctx, one)
		if err != nil {
			return NotSent{Cause: err}
		}
		if ok {
			return nil
		}
		s.link.CompareAndSwap(k, nil) // it is over, and about to say so itself
	}
	return NotSent{Cause: errors.New("connections break as soon as they are made")}
}

func (s *server) fresh(ctx context.Context) (redis.Conn, error) {
	if s.owner.opts.Servers != nil {
		return s.owner.opts.Servers.DialAddr(ctx, s.addr)
	}
	return s.owner.opts.Dial(ctx)
}

// connect returns the connection, and makes one when there is none; callers share the attempt.
func (s *server) connect(ctx context.Context) (*link, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if k := s.link.Load(); k != nil {
		s.mu.Unlock()
		return k, nil
	}
	if s.attempt == nil {
		s.attempt = &attempt{done: make(chan struct{})}
		var pause time.Duration
		if s.failures > 0 {
			pause = time.Until(s.notBefore)
		}
		s.owner.background.Go(func() { s.dial(pause) })
	}
	a := s.attempt
	s.mu.Unlock()
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dial makes an attempt, after a pause where the last one has just failed. Those who need the connection wait for it:
// the error of the last attempt says nothing about what the next one finds.
func (s *server) dial(pause time.Duration) {
	topology.Sleep(s.owner.life, pause)
	ctx, cancel := context.WithTimeout(s.owner.life, s.owner.opts.ReplyTimeout)
	defer cancel()
	k := newLink(s)
	conn, err := s.fresh(rawconn.Expecting(ctx, k.due))
	if err == nil {
		if err = s.setup(ctx, conn); err != nil {
			_ = conn.Close() // the setup's error says it all
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attempt
	s.attempt = nil
	defer close(a.done)
	if err == nil && s.closed {
		_ = conn.Close()
		err = ErrClosed
	}
	if err != nil {
		a.err = err
		s.notBefore = time.Now().Add(s.owner.opts.Retry << min(s.failures, 4))
		s.failures++
		return
	}
	s.failures = 0
	a.link = k
	k.start(conn)
	s.link.Store(k)
}

// setup is cut short by the end of ctx: closing the connection is all that redigo offers for it.
func (s *server) setup(ctx context.Context, conn redis.Conn) error {
	if s.owner.opts.Setup == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := s.owner.opts.Setup(s.addr, conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
		s.down(conn, err)
	}
	return err
}

// abandon gives the present link up, if there is one.
func (s *server) abandon() {
	if k := s.link.Load(); k != nil {
		s.link.CompareAndSwap(k, nil)
		k.retire()
	}
}

// leave gives a link up whose server has said that it is the wrong one, and tells whether another command is to
// go over another link. Where that leads to the same server, the pauses between two of them double.
func (s *server) leave(k *link) bool {
	s.mu.Lock()
	if s.link.Load() != k {
		defer s.mu.Unlock()
		return !s.closed
	}
	const most = 6
	since := time.Since(s.left)
	if since > s.owner.opts.Retry<<(most+1) {
		s.leaves = 0
	}
	if s.leaves > 0 && since < s.owner.opts.Retry<<min(s.leaves-1, most) {
		s.mu.Unlock()
		return false
	}
	s.leaves++
	s.left = time.Now()
	s.link.CompareAndSwap(k, nil)
	s.mu.Unlock()
	k.retire()
	return true
}

// broke is told by a link that it is over.
func (s *server) broke(k *link, err error) {
	s.link.CompareAndSwap(k, nil)
	if !errors.Is(err, ErrClosed) {
		s.down(k.conn, err)
	}
}

func (s *server) down(conn redis.Conn, err error) {
	if s.owner.opts.Servers != nil {
		s.owner.opts.Servers.Stale(s.addr)
	}
	if s.owner.opts.Down != nil {
		s.owner.opts.Down(s.addr, conn, err)
	}
}
