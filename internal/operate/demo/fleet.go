package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// Held is a lock in a member's hands, of whichever package.
type Held interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// Acquire waits for a lock on a key.
type Acquire func(ctx context.Context, key string) (Held, error)

// Member is one service of the fleet: it takes the lock, works for a moment inside, gives it back, and comes
// again.
type Member struct {
	Name    string
	Kind    string // java, go ...
	Acquire Acquire
	Key     string
	Work    time.Duration // longest stay inside; each is random, up to this
	Rest    time.Duration // longest pause between two turns

	fleet  *Fleet
	stop   context.CancelFunc
	left   chan struct{} // closed when it does not run any more
	crash  atomic.Bool
	mu     sync.Mutex
	record Record
}

// Record is what became of a member.
type Record struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Turns   int    `json:"turns"`
	Longest Millis `json:"longest_wait_ms"` // for the lock
	Crashed bool   `json:"crashed"`
	Lost    int    `json:"lost"` // how often its lease was over before its work was
	Errors  int    `json:"errors"`
	Err     error  `json:"-"`               // the last one
	Error   string `json:"error,omitempty"` // its text
}

// Fleet is the members at work.
type Fleet struct {
	Referee *Referee
	entered func(m *Member, waited time.Duration, overlaps []Overlap) // after every entrance
	crashed func(m *Member)

	ctx     context.Context
	running sync.WaitGroup
	mu      sync.Mutex
	members []*Member
}

// Join starts a member. It works until Leave, a crash, or the end of the fleet's context.
func (f *Fleet) Join(m *Member) {
	ctx, stop := context.WithCancel(f.ctx)
	m.fleet, m.stop, m.left = f, stop, make(chan struct{})
	m.record = Record{Name: m.Name, Kind: m.Kind}
	f.mu.Lock()
	f.members = append(f.members, m)
	f.mu.Unlock()
	f.running.Add(1)
	go func() {
		defer f.running.Done()
		defer stop()
		defer close(m.left)
		m.run(ctx)
	}()
}

// Crash makes a member die the next time it is inside, without giving the lock back.
func (f *Fleet) Crash(m *Member) { m.crash.Store(true) }

// Leave stops a member in an orderly way, after its present turn.
func (f *Fleet) Leave(m *Member) { m.stop() }

// Wait returns when no member runs any more.
func (f *Fleet) Wait() { f.running.Wait() }

// Records returns what became of every member, in the order in which they joined.
func (f *Fleet) Records() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Record
	for _, m := range f.members {
		m.mu.Lock()
		all = append(all, m.record)
		m.mu.Unlock()
	}
	return all
}

// run takes turns.
func (m *Member) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		lock, err := m.Acquire(ctx, m.Key)
		if err != nil {
			if ctx.Err() == nil {
				m.note(func(r *Record) { m.failed(r, err) })
			}
		} else if dead := m.turn(ctx, lock, time.Since(began)); dead {
			return
		}
		pause(ctx, time.Millisecond+rand.N(m.Rest+1))
	}
}

// turn is one stay inside; dead tells that the member crashed there.
func (m *Member) turn(ctx context.Context, lock Held, waited time.Duration) (dead bool) {
	overlaps := m.fleet.Referee.Enter(m.Key, m.Name)
	m.note(func(r *Record) { r.Turns++; r.Longest = max(r.Longest, Millis(waited)) })
	m.fleet.entered(m, waited, overlaps)
	pause(lock.Context(), m.Work/4+rand.N(m.Work*3/4+1))
	m.fleet.Referee.Leave(m.Key, m.Name)
	if m.crash.Load() {
		m.note(func(r *Record) { r.Crashed = true })
		m.fleet.crashed(m)
		return true
	}
	// The lock goes back even when the demo is interrupted, which is then in a hurry.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(releaseTimeout, cancel) })()
	if err := lock.Release(bounded); err != nil {
		m.note(func(r *Record) { m.failed(r, err) })
	}
	return false
}

const (
	replyTimeout   = 3 * time.Second
	releaseTimeout = 500 * time.Millisecond // once the demo is interrupted
)

// failed tells a lost lease from a failure; a lock that others hold is neither.
func (m *Member) failed(r *Record, err error) {
	switch {
	case errors.Is(err, lockmigrate.ErrLost):
		r.Lost++
	case !errors.Is(err, lockmigrate.ErrNotAcquired):
		r.Errors, r.Err, r.Error = r.Errors+1, err, err.Error()
	}
}

func (m *Member) note(change func(*Record)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.record)
}

// pause lets time pass, or ctx end.
func pause(ctx context.Context, d time.Duration) { _ = lifetime.Sleep(ctx, d) }
