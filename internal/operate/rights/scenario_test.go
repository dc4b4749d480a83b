package rights_test

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

// held is what every kind of lock has.
type held interface {
	Renew(ctx context.Context) error
	Release(ctx context.Context) error
}

// turns takes the lock, renews and releases it; then it has a second client wait for it.
func turns[L held](s *stand, first, second func(ctx context.Context, key string) (L, error)) (err error) {
	k, err := first(s.ctx, key)
	if err != nil {
		return err
	}
	if err := k.Renew(s.ctx); err != nil {
		return errors.Join(err, k.Release(s.ctx))
	}
	if err := k.Release(s.ctx); err != nil {
		return err
	}
	if second == nil {
		return nil
	}
	if k, err = first(s.ctx, key); err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		other, err := second(s.ctx, key)
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

func legacyTurns(dialect legacy.Dialect, policy legacy.ReleasePolicy, clock bool) func(s *stand) error {
	return func(s *stand) error {
		opts := legacy.Options{Dialect: dialect, Release: policy, Lease: 2 * time.Second, Poll: 20 * time.Millisecond, ReplyTimeout: time.Second}
		if clock {
			opts.FollowServer = true
		}
		l, err := legacy.New(s.pool, opts)
		if err != nil {
			return err
		}
		defer l.Close()
		if err := turns(s, l.TryAcquire, l.Acquire); err != nil {
			return err
		}
		s.admin("SET", key, dead)
		return turns(s, l.Acquire, l.Acquire)
	}
}

// pair lets two Lockers take turns.
func pair(s *stand, open func() (lockmigrate.Locker, error)) error {
	first, err := open()
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := open()
	if err != nil {
		return err
	}
	defer second.Close()
	return turns(s, first.Acquire, second.Acquire)
}

func modernTurns(opts modern.Options) func(s *stand) error {
	return func(s *stand) error {
		opts.TTL, opts.Poll, opts.ReplyTimeout = 6*time.Second, 20*time.Millisecond, 2*time.Second // replicas have half of it
		return pair(s, func() (lockmigrate.Locker, error) { return modern.New(s.pool, opts) })
	}
}

func redissonTurns(s *stand) error {
	return pair(s, func() (lockmigrate.Locker, error) {
		return redisson.New(s.pool, modern.Options{TTL: 2 * time.Second, Poll: 20 * time.Millisecond, ReplyTimeout: time.Second})
	})
}

func quorumTurns(s *stand) error {
	q, err := quorum.New(s.pools, modern.Options{TTL: 2 * time.Second, ReplyTimeout: time.Second})
	if err != nil {
		return err
	}
	defer q.Close()
	return turns(s, q.TryAcquire, q.Acquire)
}

// compatTurns also takes over from a dead legacy holder. At stage modern, where nobody does, it releases a lock with a key that
// somebody else has deleted: that has to look at key and guard one by one.
func compatTurns(opts compat.Options, modern bool) func(s *stand) error {
	opts.TTL, opts.Lease, opts.ShortestLease = 2*time.Second, 2*time.Second, 2*time.Second
	opts.CommandDelay, opts.ClockLag, opts.ReplyTimeout = 20*time.Millisecond, 20*time.Millisecond, time.Second
	return func(s *stand) error {
		var lockers [2]compat.Locker
		for i := range lockers {
			l, err := compat.New(s.pool, opts)
			if err != nil {
				return err
			}
			defer l.Close()
			lockers[i] = l
		}
		if err := turns(s, lockers[0].Acquire, lockers[1].Acquire); err != nil {
			return err
		}
		if modern {
			k, err := lockers[0].Acquire(s.ctx, key)
			if err != nil {
				return err
			}
			s.admin("DEL", key)
			return k.Release(s.ctx)
		}
		s.admin("SET", key, dead)
		return turns(s, lockers[0].Acquire, lockers[1].Acquire)
	}
}

// memberTurns runs members of a namespace at one stage. The record is the operator's.
func memberTurns(stage lockmigrate.Stage) func(s *stand) error {
	return func(s *stand) error {
		s.admin("HSET", "lockmigrate:{orders}:stage", "epoch", 1, "stage", int(stage),
			"since", time.Now().UnixMilli(), "patterns", `["lock:*"]`, "clients", `{"dialect":"jedis-ms","shortest_ms":2000}`)
		defer s.admin("DEL", "lockmigrate:{orders}:stage", "lockmigrate:{orders}:members")
		return compatTurns(compat.Options{Namespace: "orders"}, stage == lockmigrate.StageModern)(s)
	}
}

// scenarios are the uses that can be tried over a pool.
var scenarios = map[string]func(s *stand) error{
	"legacy":                  legacyTurns(legacy.Dialect{Name: "jedis-ms"}, legacy.ReleaseUnexpired, false),
	"legacy ReleaseCompare":   legacyTurns(legacy.Dialect{Name: "jedis-ms"}, legacy.ReleaseCompare, false),
	"legacy ServiceStack":     legacyTurns(legacy.Dialect{Name: "servicestack"}, legacy.ReleaseUnexpired, false),
	"legacy FollowServer":     legacyTurns(legacy.Dialect{Name: "jedis-ms"}, legacy.ReleaseUnexpired, true),
	"modern":                  modernTurns(modern.Options{}),
	"modern FenceTTL":         modernTurns(modern.Options{FenceTTL: time.Minute}),
	"modern Unfair":           modernTurns(modern.Options{Unfair: true}),
	"modern Yield":            modernTurns(modern.Options{Yield: 50 * time.Millisecond}),
	"modern Replicas":         modernTurns(modern.Options{Replicas: 1}),
	"redisson":                redissonTurns,
	"quorum":                  quorumTurns,
	"compat":                  compatTurns(compat.Options{}, false),
	"compat FenceTTL":         compatTurns(compat.Options{FenceTTL: time.Minute}, false),
	"compat Namespace legacy": memberTurns(lockmigrate.StageLegacy),
	"compat Namespace bridge": memberTurns(lockmigrate.StageBridge),
	"compat Namespace modern": memberTurns(lockmigrate.StageModern),
}
