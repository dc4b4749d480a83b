package rehearse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/wire"
	"github.com/lockmigrate/lockmigrate/modern"
)

// Client is one client of the fleet. It takes turns on its keys.
type Client struct {
	Name    string
	Old     bool // it speaks the old scheme; else it is a member of package compat from the beginning
	Dialect *protocol.Dialect
	Release protocol.Release
	Lease   time.Duration
	Poll    time.Duration
	Offset  time.Duration                  // by how much an old client's clock is ahead
	Dies    float64                        // the chance that it dies in a turn, as by kill -9; it is back at once
	Key     func(*rand.Rand) string        // of the next turn
	Hold    func(*rand.Rand) time.Duration // how long the work takes
	Think   func(*rand.Rand) time.Duration // between two turns
}

// replyTimeout is when a reply counts as lost.
const replyTimeout = 5 * time.Second

// held is a lock in a client's hands.
type held interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// old is a client of the old scheme: the shipped machines with the code's own habits, on a clock of its own.
type old struct {
	Client
	pool lockmigrate.Pool
}

func (o *old) now() protocol.Instant { return protocol.InstantOf(time.Now()).Add(o.Offset) }

// drive runs a machine on one connection.
func (o *old) drive(ctx context.Context, m protocol.Machine) (protocol.Verdict, error) {
	conn, err := o.pool.GetContext(ctx)
	if err != nil {
		return protocol.Failed, err
	}
	defer conn.Close()
	var reply protocol.Reply
	for {
		switch step := m.Next(o.now(), reply); step.Kind {
		case protocol.Send:
			reply, err = wire.Do(conn, replyTimeout, step.Command)
		case protocol.Sleep:
			if err := lifetime.Sleep(ctx, step.Sleep); err != nil {
				return protocol.Busy, err
			}
			reply = protocol.Reply{Kind: protocol.Woke}
		default:
			return step.Verdict, err
		}
	}
}

func (o *old) acquire(ctx context.Context, key string) (held, error) {
	m := &protocol.LegacyAcquire{
		Dialect: o.Dialect, Key: key, Owner: fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()>>16), Lease: o.Lease, Poll: o.Poll,
		Patience: 1000 * time.Hour, Faithful: true,
	}
	verdict, err := o.drive(ctx, m)
	if verdict == protocol.Acquired {
		return &oldLock{o, m}, nil
	}
	return nil, cmp.Or(err, fmt.Errorf("the key is not to be had: verdict %d", verdict))
}

// oldLock is held for as long as the work takes: nobody tells an old client anything.
type oldLock struct {
	*old
	took *protocol.LegacyAcquire
}

func (l *oldLock) Context() context.Context { return context.Background() }

func (l *oldLock) Release(ctx context.Context) error {
	_, err := l.drive(ctx, &protocol.LegacyRelease{
		Dialect: l.Dialect, Key: l.took.Key, Policy: l.Client.Release, Value: l.took.Value(), Expiry: l.took.Expiry(), Faithful: true,
	})
	return err
}

// worker is a client at work in one act.
type worker struct {
	*Client
	new       bool // it is a member of the namespace
	through   bool // it is an old client behind a sidecar
	elsewhere bool // it is a member of package handover
	take      func(ctx context.Context, key string) (held, error)
	close     func()
	ended     chan struct{}
	stop      context.CancelFunc
}

// entrance is one that is inside.
type entrance struct {
	who *worker
	at  time.Time
}

// referee counts who is inside, by key. It sees only clients walking in and out, in this process.
type referee struct {
	mu      sync.Mutex
	inside  map[string][]entrance
	waiting map[string]int
	freed   map[string]time.Time // when a key was given back that somebody waits for
	sheet
}

// sheet is what was counted since the last look.
type sheet struct {
	turns, overlaps, withMembers, lost int
	waits, handovers                   []time.Duration
	failures                           map[string]int
}

func newReferee() *referee {
	return &referee{inside: map[string][]entrance{}, waiting: map[string]int{}, freed: map[string]time.Time{}}
}

func (r *referee) waits(key string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[key] += n
}

func (r *referee) enter(w *worker, key string, waited time.Duration) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sheet.turns++
	r.sheet.waits = append(r.sheet.waits, waited)
	if freed, ok := r.freed[key]; ok {
		r.handovers = append(r.handovers, now.Sub(freed))
		delete(r.freed, key)
	}
	for _, other := range r.inside[key] {
		r.overlaps++
		if w.new || w.through || other.who.new || other.who.through {
			r.withMembers++
		}
	}
	r.inside[key] = append(r.inside[key], entrance{w, now})
}

// leave is told before the lock is given back.
func (r *referee) leave(w *worker, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[key] = slices.DeleteFunc(r.inside[key], func(e entrance) bool { return e.who == w })
	delete(r.freed, key)
	if r.waiting[key] > 0 && len(r.inside[key]) == 0 {
		r.freed[key] = time.Now()
	}
}

func (r *referee) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
	case errors.Is(err, lockmigrate.ErrLost):
		r.lost++
	default:
		if r.failures == nil {
			r.failures = map[string]int{}
		}
		r.failures[err.Error()]++
	}
}

// since returns what was counted, and begins anew.
func (r *referee) since() sheet {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sheet
	r.sheet = sheet{}
	return s
}

// work takes turns until it is stopped. A turn that has begun is finished.
func (w *worker) work(ctx context.Context, r *referee, g *rand.Rand) {
	defer close(w.ended)
	defer w.close()
	_ = lifetime.Sleep(ctx, time.Duration(g.Float64()*float64(w.Think(g)+w.Hold(g))))
	for ctx.Err() == nil {
		key, began := w.Key(g), time.Now()
		r.waits(key, 1)
		lock, err := w.take(ctx, key)
		r.waits(key, -1)
		if err != nil {
			if ctx.Err() == nil {
				r.failed(err)
				_ = lifetime.Sleep(ctx, w.Poll)
			}
			continue
		}
		r.enter(w, key, time.Since(began))
		_ = lifetime.Sleep(lock.Context(), w.Hold(g))
		r.leave(w, key)
		if !w.new && g.Float64() < w.Dies { // a member that is killed has no way here to be killed alone
			continue
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyTimeout)
		r.failed(lock.Release(bounded))
		cancel()
		_ = lifetime.Sleep(ctx, w.Think(g))
	}
}

// member makes a client a member of the namespace.
func member(c *Client, pool lockmigrate.Pool, record *stages.Record) (*worker, error) {
	locker, err := compat.New(pool, compatOptions(c, record))
	if err != nil {
		return nil, err
	}
	return &worker{Client: c, new: true, take: of(locker.Acquire), close: func() { _ = locker.Close() }}, nil
}

func compatOptions(c *Client, record *stages.Record) compat.Options {
	return compat.Options{
		Namespace: record.Namespace, Member: c.Name, TTL: c.Lease, Lease: max(c.Lease, record.Shortest),
		ShortestLease: record.Shortest, ClockLag: record.ClockLag, CommandDelay: record.CommandDelay, Yield: record.Yield,
	}
}

// onBoth makes a client a member of the handover too: from the lock that it has to a token on another server.
func onBoth(c *Client, pool, other lockmigrate.Pool, record *stages.Record, namespace string) (*worker, error) {
	before, err := compat.New(pool, compatOptions(c, record))
	if err != nil {
		return nil, err
	}
	after, err := modern.New(other, modern.Options{TTL: c.Lease})
	if err != nil {
		_ = before.Close()
		return nil, err
	}
	locker, err := handover.New(other, handover.Options{Namespace: namespace, Old: before, New: after, Member: c.Name, Lease: 3 * time.Second})
	if err != nil {
		_, _ = before.Close(), after.Close()
		return nil, err
	}
	return &worker{Client: c, new: true, elsewhere: true, take: of(locker.Acquire), close: func() { _, _, _ = locker.Close(), after.Close(), before.Close() }}, nil
}

// of fits a Locker's Acquire to a worker.
func of[L held](take func(context.Context, string) (L, error)) func(context.Context, string) (held, error) {
	return func(ctx context.Context, key string) (held, error) {
		lock, err := take(ctx, key)
		if err != nil {
			return nil, err // not a nil lock in an interface
		}
		return lock, nil
	}
}
