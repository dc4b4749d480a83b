package doctor_test

import (
	"context"
	"errors"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// stand is what a scenario runs on: the pool of the user with few rights, and the server's own user.
type stand struct {
	ctx   context.Context
	pool  lockmigrate.Pool
	pools []lockmigrate.Pool // of a quorum
	admin func(command string, args ...any) any
	queue bool // waiters stand in the queue on the server
}

// key is the lock of all scenarios. Its pattern is lock:*.
const key = "lock:a"

// dead is the value of a legacy holder that died long ago.
const dead = "1437000000123"

// scenario is one use: two Lockers of its kind, which take turns.
type scenario struct {
	open  func(s *stand) (lockmigrate.Locker, error)
	over  bool               // they take over from a legacy holder that died long ago
	stage *lockmigrate.Stage // they are members of a namespace at this stage, whose record is the operator's
}

// play opens the Lockers and has them take turns. At stage modern, where nobody takes over, they release a lock with a key that somebody else has
// deleted: that has to look at key and guard one by one.
func (c scenario) play(s *stand) error {
	if c.stage != nil {
		s.admin("HSET", "lockmigrate:{orders}:stage", "epoch", 1, "stage", int(*c.stage), "since", time.Now().UnixMilli(), "patterns", `["lock:*"]`,
			"clients", `{"dialect":"jedis-ms","shortest_ms":2000}`)
		defer s.admin("DEL", "lockmigrate:{orders}:stage", "lockmigrate:{orders}:members")
	}
	var lockers [2]lockmigrate.Locker
	for i := range lockers {
		l, err := c.open(s)
		if err != nil {
			return err
		}
		defer l.Close()
		lockers[i] = l
	}
	if err := turns(s, lockers[0], lockers[1]); err != nil {
		return err
	}
	if c.over {
		s.admin("SET", key, dead)
		return turns(s, lockers[0], lockers[1])
	}
	if c.stage == nil {
		return nil
	}
	k, err := lockers[0].Acquire(s.ctx, key)
	if err != nil {
		return err
	}
	s.admin("DEL", key)
	return k.Release(s.ctx)
}

// turns takes the lock, renews and releases it; then it has a second client wait for it.
func turns(s *stand, first, second lockmigrate.Locker) error {
	k, err := first.Acquire(s.ctx, key)
	if err != nil {
		return err
	}
	if err := k.Renew(s.ctx); err != nil {
		return errors.Join(err, k.Release(s.ctx))
	}
	if err := k.Release(s.ctx); err != nil {
		return err
	}
	if k, err = first.Acquire(s.ctx, key); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		other, err := second.Acquire(s.ctx, key)
		if err == nil {
			err = other.Release(s.ctx)
		}
		waited <- err
	}()
	time.Sleep(150 * time.Millisecond) // long enough for one without a queue to wait; nothing rests on it
	for began := time.Now(); s.queue && len(waited) == 0 && s.admin("EXISTS", protocol.QueueKey(key)) == int64(0) && time.Since(began) < 5*time.Second; {
		time.Sleep(10 * time.Millisecond) // the release of a lock for which one stands in line asks for more
	}
	err = k.Release(s.ctx)
	return errors.Join(err, <-waited)
}

func ofLegacy(opts legacy.Options) scenario {
	opts.Lease, opts.Poll, opts.ReplyTimeout = 2*time.Second, 20*time.Millisecond, time.Second
	return scenario{over: true, open: func(s *stand) (lockmigrate.Locker, error) { return legacy.New(s.pool, opts) }}
}

func ofModern(opts modern.Options) scenario {
	opts.TTL, opts.Poll, opts.ReplyTimeout = 6*time.Second, 20*time.Millisecond, 2*time.Second // replicas have half of it
	return scenario{open: func(s *stand) (lockmigrate.Locker, error) { return modern.New(s.pool, opts) }}
}

func ofCompat(opts compat.Options) scenario {
	opts.TTL, opts.Lease, opts.ShortestLease = 2*time.Second, 2*time.Second, 2*time.Second
	opts.CommandDelay, opts.ClockLag, opts.ReplyTimeout = 20*time.Millisecond, 20*time.Millisecond, time.Second
	return scenario{over: true, open: func(s *stand) (lockmigrate.Locker, error) { return compat.New(s.pool, opts) }}
}

func ofMembers(stage lockmigrate.Stage) scenario {
	c := ofCompat(compat.Options{Namespace: "orders"})
	c.stage, c.over = &stage, stage != lockmigrate.StageModern
	return c
}

// scenarios are the uses that can be tried over a pool.
var scenarios = map[string]scenario{
	"legacy":                ofLegacy(legacy.Options{Dialect: legacy.Dialect{Name: "jedis-ms"}}),
	"legacy ReleaseCompare": ofLegacy(legacy.Options{Dialect: legacy.Dialect{Name: "jedis-ms"}, Release: legacy.ReleaseCompare}),
	"legacy ServiceStack":   ofLegacy(legacy.Options{Dialect: legacy.Dialect{Name: "servicestack"}}),
	"legacy FollowServer":   ofLegacy(legacy.Options{Dialect: legacy.Dialect{Name: "jedis-ms"}, FollowServer: true}),
	"modern":                ofModern(modern.Options{}),
	"modern FenceTTL":       ofModern(modern.Options{FenceTTL: time.Minute}),
	"modern Unfair":         ofModern(modern.Options{Unfair: true}),
	"modern Yield":          ofModern(modern.Options{Yield: 50 * time.Millisecond}),
	"modern Replicas":       ofModern(modern.Options{Replicas: 1}),
	"redisson": {open: func(s *stand) (lockmigrate.Locker, error) {
		return redisson.New(s.pool, modern.Options{TTL: 2 * time.Second, Poll: 20 * time.Millisecond, ReplyTimeout: time.Second})
	}},
	"quorum": {open: func(s *stand) (lockmigrate.Locker, error) {
		return quorum.New(s.pools, modern.Options{TTL: 2 * time.Second, ReplyTimeout: time.Second})
	}},
	"compat":                  ofCompat(compat.Options{}),
	"compat FenceTTL":         ofCompat(compat.Options{FenceTTL: time.Minute}),
	"compat Namespace legacy": ofMembers(lockmigrate.StageLegacy),
	"compat Namespace bridge": ofMembers(lockmigrate.StageBridge),
	"compat Namespace modern": ofMembers(lockmigrate.StageModern),
}
