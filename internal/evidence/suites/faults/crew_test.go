package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

const (
	ttl   = 1500 * time.Millisecond // of bridge and modern locks
	lease = 3 * time.Second         // of legacy locks, which nobody renews
)

// kind is one way to lock.
type kind struct {
	name string
	open func(pool lockmigrate.Pool) (lockmigrate.Locker, error)
	// tells: a holder that loses the lock is told; legacy holders are not.
	tells bool
}

var legacyOptions = legacy.Options{Lease: lease, Poll: 20 * time.Millisecond, ReplyTimeout: ttl / 3}

// comparing is a legacy lock whose release harms nobody when it is late.
var comparing = kind{"legacy", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
	opts := legacyOptions
	opts.Release = legacy.ReleaseCompare
	return legacy.New(pool, opts)
}, false}

var kinds = []kind{
	{"legacy", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return legacy.New(pool, legacyOptions)
	}, false},
	{"bridge", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return compat.New(pool, compat.Options{TTL: ttl, ReplyTimeout: ttl / 3})
	}, true},
	{"modern", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Minute, ReplyTimeout: ttl / 3})
	}, true},
	{"unfair", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Minute, ReplyTimeout: ttl / 3, Unfair: true})
	}, true},
}

// visit is one holder's time inside a lock, as the referee sees it.
type visit struct {
	key, who string
	fence    int64
	told     context.Context // its end is the holder's being told
	entered  time.Time
	long     bool
	overlap  time.Time // when another came in beside it, which it was not told of before
}

// referee watches who is inside. It believes nobody but the holders' walking in and out, by one monotonic
// clock of one process. A holder whose context has ended knows that it must stop, and overlaps nobody.
type referee struct {
	mu       sync.Mutex
	inside   map[string][]*visit
	turns    map[string]int // by kind of key
	overlaps map[string]int
	delays   []time.Duration // from an overlap's beginning to its end
	untold   int             // overlaps that the first holder never heard of, and neither its release
	lost     int             // holders that were told
	history  []event
}

func newReferee() *referee {
	return &referee{inside: map[string][]*visit{}, turns: map[string]int{}, overlaps: map[string]int{}}
}

func (r *referee) enter(kind, key, who string, told context.Context, fence int64) *visit {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := &visit{key: key, who: who, fence: fence, told: told, entered: time.Now()}
	for _, other := range r.inside[key] {
		if other.told.Err() == nil {
			r.overlaps[kind]++
			// Who came in first here need not have been first on the server: the smaller fencing token must go.
			loser := other
			if other.fence > fence {
				loser = v
			}
			if loser.overlap.IsZero() {
				loser.overlap = v.entered
			}
		}
	}
	r.inside[key] = append(r.inside[key], v)
	r.turns[kind]++
	return v
}

// stay marks a visit that will be long.
func (r *referee) stay(v *visit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v.long = true
}

// midst tells that a holder has just begun a long turn: the moment in which a fault does most harm.
func (r *referee) midst() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, visits := range r.inside {
		for _, v := range visits {
			if v.long && time.Since(v.entered) < ttl/3 {
				return true
			}
		}
	}
	return false
}

func (r *referee) leave(v *visit, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[v.key] = slices.DeleteFunc(r.inside[v.key], func(o *visit) bool { return o == v })
	if lost {
		r.lost++
	}
	if !v.overlap.IsZero() {
		r.delays = append(r.delays, time.Since(v.overlap))
	}
}

func (r *referee) count(m map[string]int) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range m {
		n += v
	}
	return n
}

// crew is what works during a fault: holders of every kind, in two processes as it were, each with pools
// and lockers of its own.
type crew struct {
	t       testing.TB
	referee *referee
	stop    atomic.Bool
	cancel  context.CancelFunc
	ctx     context.Context
	working sync.WaitGroup
	closers []func()
	errs    map[string]int
	mu      sync.Mutex
	stuck   func() // says what the site looks like when nobody takes turns any more
}

// side makes a process's pool.
type side func() (lockmigrate.Pool, func())

func newCrew(t testing.TB, kinds []kind, hold time.Duration, sides ...side) *crew {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &crew{t: t, referee: newReferee(), ctx: ctx, cancel: cancel, errs: map[string]int{}}
	for s, open := range sides {
		for _, k := range kinds {
			pool, closePool := open()
			locker, err := k.open(pool)
			require.NoError(t, err)
			c.closers = append(c.closers, func() { _ = locker.Close(); closePool() })
			for i := range 4 {
				key := fmt.Sprintf("fault:%s:%d", k.name, i%2)
				who := fmt.Sprintf("%s-%d-%d", k.name, s, i)
				c.working.Go(func() { c.work(k, key, who, hold, locker) })
			}
		}
	}
	return c
}

// work takes turns until the crew stops. Every fourth turn is longer than a TTL, so that it lives by its
// renewals.
func (c *crew) work(k kind, key, who string, hold time.Duration, locker lockmigrate.Locker) {
	for n := 0; !c.stop.Load(); n++ {
		called := time.Now()
		held, err := locker.Acquire(c.ctx, key)
		if err != nil {
			if !c.stop.Load() {
				c.failed(err)
			}
			continue
		}
		v := c.referee.enter(k.name, key, who, held.Context(), held.Fence())
		work := hold/2 + rand.N(hold)
		if n%4 == 3 && k.tells {
			work += ttl
			c.referee.stay(v)
		}
		lost := false
		timer := time.NewTimer(work)
		select {
		case <-timer.C:
		case <-held.Context().Done():
			lost = true
		case <-c.ctx.Done():
		}
		timer.Stop()
		c.referee.leave(v, lost)
		ended := time.Now()
		bounded, cancel := context.WithTimeout(context.Background(), ttl)
		err = held.Release(bounded)
		cancel()
		c.referee.note(event{key: key, fence: v.fence, called: called, entered: v.entered, ended: ended, released: time.Now(), lost: lost || err != nil})
		if !v.overlap.IsZero() && !lost && err == nil && k.tells {
			c.referee.mu.Lock()
			c.referee.untold++
			c.referee.mu.Unlock()
		}
	}
}

func (c *crew) failed(err error) {
	what := "failed"
	switch {
	case errors.Is(err, lockmigrate.ErrUnknownOutcome):
		what = "unknown outcome"
	case errors.Is(err, lockmigrate.ErrNotAcquired):
		what = "not acquired"
	}
	c.mu.Lock()
	c.errs[what]++
	n := c.errs[what]
	c.mu.Unlock()
	if n < 4 {
		c.t.Logf("%s: %v", what, err)
	}
	time.Sleep(10 * time.Millisecond) // as a service would before it tries again
}

// progress waits until every kind has taken turns from now on: nothing hangs.
func (c *crew) progress(within time.Duration) {
	c.t.Helper()
	c.referee.mu.Lock()
	before := maps.Clone(c.referee.turns)
	c.referee.mu.Unlock()
	deadline := time.Now().Add(within)
	for {
		c.referee.mu.Lock()
		behind := ""
		for k, n := range c.referee.turns {
			if n < before[k]+4 {
				behind = k
			}
		}
		none := len(c.referee.turns) == 0
		c.referee.mu.Unlock()
		if behind == "" && !none {
			return
		}
		if time.Now().After(deadline) {
			if c.stuck != nil {
				c.stuck()
			}
			c.t.Fatalf("no more turns of %q within %v; errors %v", behind, within, c.errs)
		}
		time.Sleep(5 * time.Millisecond) // polling the crew's counters
	}
}

// end stops the crew and closes everything.
func (c *crew) end() {
	c.stop.Store(true)
	c.cancel()
	done := make(chan struct{})
	go func() {
		c.working.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2*ttl + 10*time.Second):
		c.t.Fatal("a worker hangs")
	}
	var closing sync.WaitGroup
	for _, end := range c.closers {
		closing.Go(end)
	}
	closing.Wait()
}

// direct is a process that connects to an address.
func direct(addr string) side {
	return func() (lockmigrate.Pool, func()) {
		p := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(time.Second))
		}}
		return p, func() { _ = p.Close() }
	}
}
