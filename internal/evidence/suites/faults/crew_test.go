package faults

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
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
		return compat.New(pool, compat.Options{TTL: ttl, FenceTTL: time.Minute, ReplyTimeout: ttl / 3})
	}, true},
	{"modern", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Minute, ReplyTimeout: ttl / 3})
	}, true},
	{"unfair", func(pool lockmigrate.Pool) (lockmigrate.Locker, error) {
		return modern.New(pool, modern.Options{TTL: ttl, FenceTTL: time.Minute, ReplyTimeout: ttl / 3, Unfair: true})
	}, true},
}

// visit is a worker's turn inside a lock. A holder whose context has ended knows that it must stop, and overlaps nobody.
type visit struct {
	fleet.Held
	crew  *crew
	kind  kind
	key   string
	fence int64

	called, entered, ended, released time.Time

	long    bool
	lost    bool      // its holder was told, by its context or at the release
	overlap time.Time // when another came in beside it, which it was not told of before
}

// Release ends the turn.
func (v *visit) Release(context.Context) error {
	c, told := v.crew, v.Context().Err() != nil
	c.mu.Lock()
	v.ended = time.Now()
	c.mu.Unlock()
	bounded, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	err := v.Held.Release(bounded)
	c.mu.Lock()
	defer c.mu.Unlock()
	v.released, v.lost = time.Now(), told || err != nil
	c.history = append(c.history, v)
	if told {
		c.told++
	}
	if !v.overlap.IsZero() {
		c.delays = append(c.delays, v.ended.Sub(v.overlap))
		if !v.lost && v.kind.tells {
			c.untold++
		}
	}
	return err
}

// crew is what works during a fault: holders of every kind, in two processes as it were, each with pools
// and lockers of its own.
type crew struct {
	t       testing.TB
	referee *fleet.Referee
	workers map[*fleet.Worker]kind
	closers []func()
	errs    atomic.Int64 // so far

	mu       sync.Mutex
	inside   map[*fleet.Worker]*visit // the last turn of each
	overlaps map[string]int           // by kind
	delays   []time.Duration          // from an overlap's beginning to its end
	untold   int                      // overlaps that the first holder never heard of, and neither its release
	told     int                      // holders whose contexts ended
	history  []*visit
}

// pool is one that can be closed.
type pool interface {
	lockmigrate.Pool
	Close() error
}

// side makes a process's pool.
type side func() (pool, error)

func newCrew(t testing.TB, kinds []kind, hold time.Duration, sides ...side) *crew {
	t.Helper()
	c := &crew{t: t, referee: fleet.NewReferee(), workers: map[*fleet.Worker]kind{}, inside: map[*fleet.Worker]*visit{}, overlaps: map[string]int{}}
	c.referee.Entered = c.entered
	for s, open := range sides {
		for _, k := range kinds {
			pool, err := open()
			require.NoError(t, err)
			locker, err := k.open(pool)
			require.NoError(t, err)
			c.closers = append(c.closers, func() { _, _ = locker.Close(), pool.Close() })
			for i := range 4 {
				key := fmt.Sprintf("fault:%s:%d", k.name, i%2)
				c.workers[c.worker(fmt.Sprintf("%s-%d-%d", k.name, s, i), key, k, hold, locker)] = k
			}
		}
	}
	for w := range c.workers {
		w.Start(context.Background(), c.referee, 0)
	}
	return c
}

// worker takes turns at a key. Every fourth turn is longer than a TTL, so that it lives by its renewals.
func (c *crew) worker(name, key string, k kind, hold time.Duration, locker lockmigrate.Locker) *fleet.Worker {
	w, n := &fleet.Worker{Name: name}, 0
	w.Key, w.Think = func() string { return key }, func() time.Duration { return 0 }
	w.Take = func(ctx context.Context, key string) (fleet.Held, error) {
		called := time.Now()
		lock, err := locker.Acquire(ctx, key)
		if err != nil {
			if ctx.Err() == nil && c.errs.Add(1) < 10 {
				c.t.Log(err)
			}
			time.Sleep(10 * time.Millisecond) // as a service would before it tries again
			return nil, err
		}
		v := &visit{Held: lock, crew: c, kind: k, key: key, fence: lock.Fence(), called: called}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.inside[w] = v
		return v, nil
	}
	w.Hold = func() time.Duration {
		n++
		work := hold/2 + rand.N(hold)
		if n%4 == 0 && k.tells {
			work += ttl
			c.mu.Lock()
			defer c.mu.Unlock()
			c.inside[w].long = true
		}
		return work
	}
	return w
}

// isInside: it has come in, and has not begun to give the lock back.
func (v *visit) isInside() bool { return !v.entered.IsZero() && v.ended.IsZero() }

// entered judges who is inside already. It believes nobody but the holders' walking in and out, by one monotonic clock of one process.
func (c *crew) entered(w *fleet.Worker, _ []*fleet.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.inside[w]
	v.entered = time.Now()
	for _, other := range c.inside {
		if other == v || other.key != v.key || !other.isInside() || other.Context().Err() != nil {
			continue
		}
		c.overlaps[v.kind.name]++
		// Who came in first here need not have been first on the server: the smaller fencing token must go.
		loser := other
		if other.fence > v.fence {
			loser = v
		}
		if loser.overlap.IsZero() {
			loser.overlap = v.entered
		}
	}
}

// midst tells that a holder has just begun a long turn: the moment in which a fault does most harm.
func (c *crew) midst() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.inside {
		if v.long && v.isInside() && time.Since(v.entered) < ttl/3 {
			return true
		}
	}
	return false
}

// turns counts them by kind.
func (c *crew) turns() map[string]int {
	n := map[string]int{}
	for w, k := range c.workers {
		n[k.name] += c.referee.Turns(w.Name)
	}
	return n
}

// progress waits until every kind has taken turns from now on: nothing hangs.
func (c *crew) progress(within time.Duration) {
	c.t.Helper()
	before := c.turns()
	redistest.Within(c.t, "more turns of every kind", within, func() bool {
		for name, n := range c.turns() {
			if n < before[name]+4 {
				return false
			}
		}
		return true
	})
}

// end stops the crew and closes everything.
func (c *crew) end() {
	for w := range c.workers {
		w.Stop()
	}
	bounded, cancel := context.WithTimeout(context.Background(), 2*ttl+10*time.Second)
	defer cancel()
	for w := range c.workers {
		require.NoError(c.t, w.Wait(bounded), "a worker hangs")
	}
	var closing sync.WaitGroup
	for _, end := range c.closers {
		closing.Go(end)
	}
	closing.Wait()
}

// direct is a process that connects to an address.
func direct(addr string) side {
	return func() (pool, error) {
		return &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(time.Second))
		}}, nil
	}
}

// explained tells whether a key's turns are linearizable: a lock that one holds at a time, whose fencing tokens only rise, can have done what
// the callers saw. The tokens leave one order to try: each turn's acquisition and end must have an instant between call and return, in that
// order. A loss ends a turn like a release, at any time since its holder came in.
func explained(turns []*visit) bool {
	turns = slices.SortedFunc(slices.Values(turns), func(a, b *visit) int { return cmp.Compare(a.fence, b.fence) })
	var now time.Time
	within := func(call, back time.Time) bool {
		if call.After(now) {
			now = call
		}
		return !now.After(back)
	}
	for i, v := range turns {
		end := v.ended
		if v.lost {
			end = v.entered
		}
		if i > 0 && turns[i-1].fence == v.fence || !within(v.called, v.entered) || !within(end, v.released) {
			return false
		}
	}
	return true
}

// unexplained are the keys of fencing tokens whose history no order explains. It returns how many turns there were, too.
func (c *crew) unexplained() (checked int, wrong []string) {
	byKey := map[string][]*visit{}
	for _, v := range c.history {
		if v.fence != 0 {
			byKey[v.key] = append(byKey[v.key], v)
			checked++
		}
	}
	for key, turns := range byKey {
		if !explained(turns) {
			wrong = append(wrong, key)
		}
	}
	return checked, wrong
}

// TestExplained: what a history may look like, and what not.
func TestExplained(t *testing.T) {
	turn := func(fence int64, called, entered, ended, released int, lost bool) *visit {
		at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
		return &visit{fence: fence, called: at(called), entered: at(entered), ended: at(ended), released: at(released), lost: lost}
	}
	for name, c := range map[string]struct {
		turns []*visit
		want  bool
	}{
		"in turn":                           {[]*visit{turn(1, 0, 1, 2, 3, false), turn(2, 0, 4, 5, 6, false)}, true},
		"released before the reply":         {[]*visit{turn(1, 0, 1, 2, 9, false), turn(2, 0, 4, 5, 6, false)}, true},
		"beside":                            {[]*visit{turn(1, 0, 1, 5, 6, false), turn(2, 0, 4, 7, 8, false)}, false},
		"beside one that has lost its lock": {[]*visit{turn(1, 0, 1, 5, 6, true), turn(2, 0, 4, 7, 8, false)}, true},
		"tokens that fall":                  {[]*visit{turn(2, 0, 1, 2, 3, false), turn(1, 4, 5, 6, 7, false)}, false},
		"one token twice":                   {[]*visit{turn(1, 0, 1, 2, 3, false), turn(1, 4, 5, 6, 7, false)}, false},
	} {
		assert.Equal(t, c.want, explained(c.turns), name)
	}
}
