package modern

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// lease is what the renewer keeps of a lock: when to renew it, and when it is lost.
type lease struct {
	owner leased
	began protocol.Instant
	until atomicInstant // the deadline on our own clock; guarded by the renewer's mu for writing

	// Guarded by the renewer's mu.
	due   protocol.Instant // of the next renewal
	end   protocol.Instant // of MaxHold; 0 for none
	at    protocol.Instant // the earliest of them: the heap's order
	index int              // in the heap, plus one; 0 when it is not there
	round *round           // the renewal that is under way
}

// leased is the lock behind a lease.
type leased interface {
	renewal() protocol.Command
	renewed(took time.Duration)
	renewalFailed(err error)
	lost(cause error, note string)
}

// batcher sends commands together and hands out their replies.
type batcher interface {
	Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error))
	Close()
	Wait()
}

// round is one renewal of one lease on every server; guarded by the renewer's mu.
type round struct {
	sent              protocol.Instant
	yes, no, answered int
	err               error
	decided           bool
}

// renewer keeps all leases of a Locker, on one goroutine and one connection to each server. Leases are
// in a heap by the next thing that happens to them. What is due, and what soon will be, goes out as one
// pipeline.
//
// The deadline of a lease is not a matter of replies: whatever the connection does, the goroutine looks
// at every lease when its deadline is there. So it never sends or dials itself; that is done by a short
// task for each batch.
type renewer struct {
	clock  clock
	lines  []batcher
	quorum int
	ttl    time.Duration
	drift  time.Duration // taken off every deadline
	every  time.Duration // 0: no renewal
	max    time.Duration
	limit  time.Duration // the longest wait for a reply

	mu      sync.Mutex
	heap    []*lease
	running bool
	closed  bool
	armed   protocol.Instant // when the goroutine wakes by itself
	wake    chan struct{}
	done    chan struct{}

	background sync.WaitGroup
}

// batchLimit is how many renewals are written in one go.
const batchLimit = 1000

func newRenewer(c clock, lines []batcher, quorum int, o Options) *renewer {
	r := &renewer{
		clock: c, lines: lines, quorum: quorum, ttl: o.TTL, every: o.RenewEvery, max: o.MaxHold, limit: o.ReplyTimeout,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if o.NoRenewal {
		r.every = 0
	}
	return r
}

// add takes a lease in. Its until is set.
func (r *renewer) add(s *lease) {
	now := r.clock.now()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		s.owner.lost(nil, "the Locker is closed")
		return
	}
	if r.max > 0 {
		s.end = s.began.Add(r.max)
	}
	r.schedule(s, now)
	r.push(s)
	if !r.running {
		r.running = true
		r.armed = s.at
		go r.run()
	}
	r.rouse(s.at)
	r.mu.Unlock()
}

// schedule sets when the lease is renewed next. A lease shorter than a whole one, a claim, is renewed
// after a third of what is left.
func (r *renewer) schedule(s *lease, now protocol.Instant) {
	until := s.until.load()
	s.due = until
	if r.every > 0 {
		s.due = now.Add(min(r.every, until.Sub(now)/3))
	}
	r.order(s)
}

// order puts the earliest of a lease's times into at.
func (r *renewer) order(s *lease) {
	s.at = min(s.due, s.until.load())
	if s.end != 0 {
		s.at = min(s.at, s.end)
	}
}

// remove takes a lease out, and tells whether it was in.
func (r *renewer) remove(s *lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pop(s)
}

// extended moves a deadline that was extended by other means than a renewal of ours.
func (r *renewer) extended(s *lease, until protocol.Instant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.index == 0 {
		return
	}
	s.until.store(max(s.until.load(), until))
	r.schedule(s, r.clock.now())
	r.fix(s)
	r.rouse(s.at)
}

// close ends the goroutine and every lease.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	running := r.running
	left := r.heap
	r.heap = nil
	for _, s := range left {
		s.index = 0
	}
	r.mu.Unlock()
	if running {
		close(r.wake)
		<-r.done
	}
	for _, b := range r.lines {
		b.Close()
	}
	r.background.Wait()
	for _, b := range r.lines {
		b.Wait()
	}
	for _, s := range left {
		s.owner.lost(nil, "the Locker was closed; the key stays until its TTL is over")
	}
}

// rouse makes the goroutine look earlier if it would sleep past at. The caller holds mu. Leases are
// mostly added with the same distance, so this is rare: between two wakings, each is later than the last.
func (r *renewer) rouse(at protocol.Instant) {
	if at < r.armed && !r.closed {
		r.armed = at
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

func (r *renewer) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case _, open := <-r.wake:
			if !open {
				return
			}
		}
		timer.Reset(r.look())
	}
}

// look does what is due and returns how long there is nothing to do.
func (r *renewer) look() time.Duration {
	now := r.clock.now()
	var over, outlived []*lease
	var due []*lease
	r.mu.Lock()
	// Renewals that are nearly due go out with one that is: one round trip for all of them.
	horizon := now.Add(r.every / 10)
	early := now
	for len(r.heap) > 0 {
		s := r.heap[0]
		switch {
		case s.until.load() <= now:
			r.pop(s)
			over = append(over, s)
			continue
		case s.end != 0 && s.end <= now:
			r.pop(s)
			outlived = append(outlived, s)
			continue
		case s.due <= early && s.at == s.due:
			due, early = append(due, s), horizon
			// An answer comes in any case, if only that there is none, and says when to go on. Sending once
			// more before that would add to the load that may be what makes the answer late.
			s.due = max(s.until.load(), horizon.Add(1))
			s.round = &round{sent: now}
			r.order(s)
			r.fix(s)
			continue
		}
		break
	}
	sleep := time.Hour
	if len(r.heap) > 0 {
		sleep = max(r.heap[0].at.Sub(now), 0)
	}
	r.armed = now.Add(sleep)
	r.mu.Unlock()

	for _, s := range over {
		s.owner.lost(nil, "no renewal came through before the deadline")
	}
	for _, s := range outlived {
		s.owner.lost(nil, "held for longer than MaxHold")
	}
	if len(due) > 0 {
		r.send(due)
	}
	return sleep
}

// send renews leases on every server, as one pipeline each, in portions that do not keep others out.
func (r *renewer) send(due []*lease) {
	commands := make([]protocol.Command, len(due))
	rounds := make([]*round, len(due))
	r.mu.Lock()
	for i, s := range due {
		commands[i] = s.owner.renewal()
		rounds[i] = s.round
	}
	r.mu.Unlock()
	for _, b := range r.lines {
		r.background.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), r.limit)
			defer cancel()
			for from := 0; from < len(commands); from += batchLimit {
				to := min(from+batchLimit, len(commands))
				b.Batch(ctx, commands[from:to], func(i int, reply protocol.Reply, err error) {
					r.answer(due[from+i], rounds[from+i], reply, err)
				})
			}
		})
	}
}

// answer counts one server's reply. A majority decides; with one server that is its word.
func (r *renewer) answer(s *lease, v *round, reply protocol.Reply, err error) {
	r.mu.Lock()
	v.answered++
	switch {
	case reply.Kind == protocol.Integer && reply.Int == 1:
		v.yes++
	case reply.Kind == protocol.Integer || reply.Kind == protocol.Nil:
		v.no++
	case err != nil:
		v.err = err
	default:
		v.err = errors.New("no answer")
	}
	if v.decided || s.index == 0 {
		r.mu.Unlock()
		return
	}
	now := r.clock.now()
	switch {
	case v.yes >= r.quorum:
		v.decided = true
		s.until.store(max(s.until.load(), v.sent.Add(r.ttl-r.drift)))
		if s.round == v {
			s.due = max(now, v.sent.Add(r.every))
		}
		r.order(s)
		r.fix(s)
		r.rouse(s.at)
		r.mu.Unlock()
		s.owner.renewed(now.Sub(v.sent))
	case v.no > len(r.lines)-r.quorum:
		v.decided = true
		r.pop(s)
		r.mu.Unlock()
		s.owner.lost(nil, "the key is not ours any more")
	case v.answered == len(r.lines):
		v.decided = true
		if s.round == v { // try again soon: most of the time that is left is for that
			s.due = min(s.due, now.Add(max(min(s.until.load().Sub(now)/8, 500*time.Millisecond), time.Millisecond)))
			r.order(s)
			r.fix(s)
			r.rouse(s.at)
		}
		err := v.err
		r.mu.Unlock()
		s.owner.renewalFailed(err)
	default:
		r.mu.Unlock()
	}
}

// The heap, smallest at first. The caller holds mu.

func (r *renewer) push(s *lease) {
	r.heap = append(r.heap, s)
	s.index = len(r.heap)
	r.up(s.index - 1)
}

func (r *renewer) pop(s *lease) bool {
	if s.index == 0 {
		return false
	}
	i, last := s.index-1, len(r.heap)-1
	r.swap(i, last)
	r.heap[last] = nil
	r.heap = r.heap[:last]
	s.index = 0
	if i < last {
		r.down(i)
		r.up(i)
	}
	return true
}

func (r *renewer) fix(s *lease) {
	i := s.index - 1
	r.down(i)
	r.up(i)
}

func (r *renewer) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if r.heap[parent].at <= r.heap[i].at {
			return
		}
		r.swap(i, parent)
		i = parent
	}
}

func (r *renewer) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(r.heap); child++ {
			if r.heap[child].at < r.heap[least].at {
				least = child
			}
		}
		if least == i {
			return
		}
		r.swap(i, least)
		i = least
	}
}

func (r *renewer) swap(i, j int) {
	h := r.heap
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

// pooled is the batcher of a pool that only hands out connections: it keeps one of them.
type pooled struct {
	pool    lockmigrate.Pool
	timeout time.Duration

	mu     sync.Mutex
	conn   redis.Conn
	closed bool
}

// Batch implements batcher. Scripts go out by digest; what the server has forgotten is sent again.
func (p *pooled) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil && !p.closed {
		conn, err := p.pool.GetContext(ctx)
		if err != nil {
			if conn != nil {
				_ = conn.Close()
			}
			for i := range commands {
				each(i, protocol.Reply{Kind: protocol.Silence}, err)
			}
			return
		}
		p.conn = conn
	}
	for i, c := range commands {
		if p.conn == nil {
			each(i, protocol.Reply{Kind: protocol.Silence}, errors.New("the connection for renewals broke"))
			continue
		}
		reply, err := wire.Do(p.conn, p.timeout, c)
		if reply.Kind == protocol.Silence {
			_ = p.conn.Close()
			p.conn = nil
		}
		each(i, reply, err)
	}
}

// Close gives the connection back.
func (p *pooled) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// Wait implements batcher.
func (p *pooled) Wait() {}
