package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
)

// held is a lock in a member's hands, of whichever package.
type held interface {
	Context() context.Context
	Release(ctx context.Context) error
}

// acquire waits for a lock on a key.
type acquire func(ctx context.Context, key string) (held, error)

// of fits a Locker's Acquire to a member.
func of[L held](take func(context.Context, string) (L, error)) acquire {
	return func(ctx context.Context, key string) (held, error) {
		lock, err := take(ctx, key)
		if err != nil {
			return nil, err // not a nil lock in an interface
		}
		return lock, nil
	}
}

// member is one service of the fleet: it takes the lock, works for a moment inside, gives it back, and comes again.
type member struct {
	Record
	acquire acquire
	stop    context.CancelFunc // after its present turn
	left    chan struct{}      // closed when it does not run any more
	crash   atomic.Bool        // it dies the next time it is inside, without giving the lock back
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

// fleet is the members at work, and the referee, who counts who is inside. The referee sees only members walking in and out, in this process: no lock, no
// server and no value tells it what to believe. A member enters after its lock says that it holds, and leaves before it says release, so whatever
// the referee sees as two inside at once really was.
type fleet struct {
	ctx     context.Context
	key     string                             // that everybody wants
	entered func(m *member, overlaps []string) // after every entrance: who was inside already
	crashed func(m *member)
	running sync.WaitGroup

	mu       sync.Mutex
	members  []*member
	inside   []string
	turns    int
	overlaps int
}

// join starts a member. It works until it is stopped, a crash, or the end of the fleet's context.
func (f *fleet) join(name, kind string, take acquire) *member {
	ctx, stop := context.WithCancel(f.ctx)
	m := &member{Record: Record{Name: name, Kind: kind}, acquire: take, stop: stop, left: make(chan struct{})}
	f.mu.Lock()
	f.members = append(f.members, m)
	f.mu.Unlock()
	f.running.Go(func() {
		defer stop()
		defer close(m.left)
		f.run(ctx, m)
	})
	return m
}

// records returns what became of every member, in the order in which they joined.
func (f *fleet) records() (all []Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		all = append(all, m.Record)
	}
	return all
}

// fails tells that somebody's lock has failed.
func (f *fleet) fails() bool {
	return slices.ContainsFunc(f.records(), func(r Record) bool { return r.Err != nil })
}

// count returns the turns and overlaps so far.
func (f *fleet) count() (turns, overlaps int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.turns, f.overlaps
}

// enter says that a member is inside, and returns those beside it.
func (f *fleet) enter(m *member, waited time.Duration) (beside []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	beside = slices.Clone(f.inside)
	f.inside = append(f.inside, m.Name)
	f.turns++
	f.overlaps += len(beside)
	m.Turns++
	m.Longest = max(m.Longest, Millis(waited))
	return beside
}

// leave says that a member is not inside any more.
func (f *fleet) leave(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside = slices.DeleteFunc(f.inside, func(name string) bool { return name == m.Name })
	m.Crashed = m.crash.Load()
}

// run takes turns.
func (f *fleet) run(ctx context.Context, m *member) {
	for ctx.Err() == nil && !m.Crashed {
		began := time.Now()
		if lock, err := m.acquire(ctx, f.key); err == nil {
			f.turn(ctx, m, lock, time.Since(began))
		} else if ctx.Err() == nil {
			f.failed(m, err)
		}
		pause(ctx, time.Millisecond+rand.N(rest))
	}
}

// turn is one stay inside.
func (f *fleet) turn(ctx context.Context, m *member, lock held, waited time.Duration) {
	f.entered(m, f.enter(m, waited))
	pause(lock.Context(), work/4+rand.N(work*3/4))
	if f.leave(m); m.Crashed {
		f.crashed(m)
		return
	}
	// The lock goes back even when the demo is interrupted, which is then in a hurry.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), replyTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(releaseTimeout, cancel) })()
	f.failed(m, lock.Release(bounded))
}

const (
	replyTimeout   = 3 * time.Second
	releaseTimeout = 500 * time.Millisecond // once the demo is interrupted
)

// failed tells a lost lease from a failure; a lock that others hold is neither.
func (f *fleet) failed(m *member, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case errors.Is(err, lockmigrate.ErrLost):
		m.Lost++
	case err != nil && !errors.Is(err, lockmigrate.ErrNotAcquired):
		m.Errors, m.Err, m.Error = m.Errors+1, err, err.Error()
	}
}

// pause lets time pass, or ctx end.
func pause(ctx context.Context, d time.Duration) { _ = lifetime.Sleep(ctx, d) }
