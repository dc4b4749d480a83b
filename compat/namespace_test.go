package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// namespaceOf creates the namespace orders.
func namespaceOf(t testing.TB, s *redistest.Server, record stages.Record) *stages.Store {
	t.Helper()
	store := &stages.Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
	record.Patterns, record.Dialect = []string{"orders*"}, "jedis-ms"
	require.NoError(t, store.Init(t.Context(), record))
	return store
}

// correct changes the record of the namespace, as an operator does, and returns its new epoch.
func correct(t testing.TB, store *stages.Store, change func(*stages.Record)) int64 {
	t.Helper()
	view, err := store.Show(t.Context())
	require.NoError(t, err)
	to := view.Record
	change(&to)
	if blockers, err := store.Set(t.Context(), view.Record.Epoch, view.Record, to, true); err != nil || len(blockers) > 0 {
		t.Fatal(blockers, err)
	}
	return view.Record.Epoch + 1
}

func shortest(d time.Duration) func(*stages.Record) {
	return func(r *stages.Record) { r.Shortest = d }
}

// poolTo is a pool for an address that is not the server's own.
func poolTo(t testing.TB, addr string) *redis.Pool {
	pool := &redis.Pool{MaxIdle: 9, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// TestAMemberWithAFixedNameComesBack: a process that crashed cannot say goodbye, and the one that follows it
// under the same name, as in a StatefulSet, works at once. What the first one may still hold is waited for.
func TestAMemberWithAFixedNameComesBack(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespace(t, s)
		named := quick(ofOrders, func(o *compat.Options) { o.Member = "pay-0" })
		link := s.Route("first")
		pool := link.Pool()
		first := opened(t, pool, quick(ofOrders, func(o *compat.Options) { o.Member, o.ReplyTimeout = "pay-0", 300*time.Millisecond }))
		acquire(t, first, "orders:1")
		redistest.Await(t, "several reports of the first", func() bool {
			view, err := store.Show(t.Context())
			return err == nil && len(view.Members) == 1 && view.Members[0].Epoch == 1
		})
		time.Sleep(time.Second) // it lives for some time: its reports have numbers that grow
		link.Partition()        // and dies: nothing of it reaches the server any more

		began := time.Now()
		second := newLocker(t, s, named)
		k, err := second.Acquire(redistest.Bounded(t, 10*time.Second), "orders:2")
		require.NoError(t, err, "the process that follows:")
		release(t, k)
		assert.LessOrEqual(t, time.Since(began), 5*time.Second, "it worked after")
		view, err := store.Show(t.Context())
		if err != nil || len(view.Members) != 2 {
			t.Fatalf("both processes count until the first has run out: %+v, %v", view.Members, err)
		}
	})
}

// TestTheRecordsFiguresBindMembers: what the record knows of the old clients holds for every member. An option may be more
// careful; one that is bolder is refused, with both values; a correction of the record ends the refusal.
func TestTheRecordsFiguresBindMembers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		store := namespaceOf(t, s, stages.Record{Shortest: 20 * time.Second, ClockLag: 4 * time.Second, CommandDelay: time.Second})
		ready := func(change func(*compat.Options)) error {
			o := compat.Options{Namespace: "orders"}
			change(&o)
			l, err := compat.New(s.Pool(), o)
			require.NoError(t, err)
			defer l.Close()
			return l.Ready(redistest.Bounded(t, 10*time.Second))
		}
		for says, change := range map[string]func(*compat.Options){
			"ShortestLease 25s is longer than the record's 20s":  func(o *compat.Options) { o.ShortestLease = 25 * time.Second },
			"ClockLag 1s is shorter than the record's 4s":        func(o *compat.Options) { o.ClockLag = time.Second },
			"CommandDelay 100ms is shorter than the record's 1s": func(o *compat.Options) { o.CommandDelay = 100 * time.Millisecond },
		} {
			if err := ready(change); !errors.Is(err, lockmigrate.ErrStage) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", says, err)
			}
		}
		careful := func(o *compat.Options) {
			o.ShortestLease, o.ClockLag, o.CommandDelay = 15*time.Second, 5*time.Second, 2*time.Second
		}
		for what, change := range map[string]func(*compat.Options){"the record's": func(*compat.Options) {}, "more careful": careful} {
			assert.NoError(t, ready(change), "%s:", what)
		}
		correct(t, store, func(r *stages.Record) { r.ClockLag = time.Second })
		assert.NoError(t, ready(func(o *compat.Options) { o.ClockLag = time.Second }), "after the correction:")
	})
}

// TestWhatCannotWorkFailsAtOnce: a misspelt namespace, a dialect that is not the record's and a key of another namespace are errors of
// the first call, not silent waits.
func TestWhatCannotWorkFailsAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		namespace(t, s)
		for name, c := range map[string]struct {
			key    string
			change func(*compat.Options)
			says   string
		}{
			"misspelt": {"orders:1", func(o *compat.Options) { o.Namespace = "odrers" }, "namespace odrers: there is no such namespace"},
			"dialect":  {"orders:1", func(o *compat.Options) { o.Dialect = legacy.Dialect{Name: "redispy-float"} }, "dialect jedis-ms"},
			"lease":    {"orders:1", func(o *compat.Options) { o.Lease, o.ShortestLease = 500*time.Millisecond, 400*time.Millisecond }, "Lease of 500ms"},
			"key":      {"bills:1", func(*compat.Options) {}, "not of namespace"},
		} {
			l := newLocker(t, s, quick(ofOrders, c.change))
			for verb, call := range map[string]func(context.Context) error{
				"Acquire":    func(ctx context.Context) error { _, err := l.Acquire(ctx, c.key); return err },
				"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, c.key); return err },
				"Do": func(ctx context.Context) error {
					return l.Do(ctx, c.key, func(context.Context) error { return nil })
				},
			} {
				err := call(redistest.Bounded(t, 10*time.Second))
				if !errors.Is(err, lockmigrate.ErrStage) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %s: %v", name, verb, err)
				}
			}
		}
	})
}

// TestALateReportAfterGoodbye: what a member sent before it left, and what arrives after, does not bring it back.
func TestALateReportAfterGoodbye(t *testing.T) {
	s := redistest.Real(t)
	store := namespace(t, s)
	proxy := redistest.NewProxy(t, s)
	held := make(chan struct{})
	joined, arrived := 0, make(chan struct{}, 1)
	proxy.Before(func(words []string) {
		if strings.HasPrefix(words[0], "EVAL") && len(words) > 5 && words[3] == stages.RecordKey("orders") {
			if joined++; joined == 5 {
				arrived <- struct{}{}
				<-held // the report is on its way for long
			}
		}
	})
	l := opened(t, poolTo(t, proxy.Addr), quick(ofOrders, func(o *compat.Options) { o.ReplyTimeout = 200 * time.Millisecond }))
	<-arrived
	l.Close()
	redistest.Await(t, "the goodbye", func() bool {
		view, err := store.Show(t.Context())
		return err == nil && len(view.Members) == 0
	})
	monitor := s.Monitor()
	close(held)
	var seen []redistest.Command
	redistest.Await(t, "the late report at the server", func() bool {
		seen = append(seen, monitor.Commands()...)
		return strings.Contains(fmt.Sprint(seen), stages.RecordKey("orders"))
	})
	if view, err := store.Show(t.Context()); err != nil || len(view.Members) != 0 {
		t.Errorf("the late report brought it back: %+v, %v", view.Members, err)
	}
}

// TestAMisfitSaysWhy: a member that cannot run the record tells it, and is in the way of the next stage with its
// reason until it is corrected; not of the way back.
func TestAMisfitSaysWhy(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespace(t, s)
		well := newLocker(t, s, quick(ofOrders))
		require.NoError(t, well.Ready(redistest.Bounded(t, 10*time.Second)))
		canary := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.Member, o.Dialect = "canary", legacy.Dialect{Name: "redispy-float"} }))
		if err := canary.Ready(redistest.Bounded(t, 10*time.Second)); !errors.Is(err, lockmigrate.ErrStage) || !strings.Contains(err.Error(), "Options.Dialect says redispy-float") {
			t.Fatalf("ready: %v", err)
		}
		var view stages.View
		redistest.Await(t, "the canary's reason in the record", func() bool {
			view, _ = store.Show(t.Context())
			return len(view.Members) == 2 && strings.Contains(view.Members[0].Misfit+view.Members[1].Misfit, "Options.Dialect says redispy-float")
		})
		var blockers []stages.Blocker
		redistest.Await(t, "nobody but the canary in the way", func() bool {
			blockers, _ = store.Move(t.Context(), view.Record.Epoch, stages.Bridge, true)
			return len(blockers) == 1
		})
		if b := blockers[0]; !strings.HasPrefix(b.Member, "canary/") || b.Why != "misfit" || !strings.Contains(b.String(), "Options.Dialect says redispy-float") {
			t.Fatalf("in the way: %+v", b)
		}
		canary.Close()
		moveTo(t, store, stages.Bridge)
		runs(t, well, lockmigrate.StageBridge)

		again := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.Dialect = legacy.Dialect{Name: "redispy-float"} }))
		_ = again.Ready(redistest.Bounded(t, 10*time.Second))
		moveTo(t, store, stages.Legacy) // the way back is open
		runs(t, well, lockmigrate.StageLegacy)
	})
}

// TestAServiceOutlivesACorrectedRecord: options that did not fit the record work as soon as the record is corrected,
// and a record that is changed under a member to what it cannot run stops it at once, with the reason.
func TestAServiceOutlivesACorrectedRecord(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespaceOf(t, s, stages.Record{Shortest: time.Hour})
		l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.ShortestLease = 0 }))
		if _, err := l.Acquire(redistest.Bounded(t, 10*time.Second), "orders:1"); !errors.Is(err, lockmigrate.ErrStage) || !strings.Contains(err.Error(), "Lease 5s is shorter") {
			t.Fatalf("a lease of 5 s where the shortest is an hour: %v", err)
		}
		correct(t, store, shortest(time.Second))
		redistest.Await(t, "the Locker takes the correction over", func() bool { return l.Ready(t.Context()) == nil })
		k := acquire(t, l, "orders:1")
		correct(t, store, shortest(time.Hour))
		redistest.Await(t, "the refusal", func() bool {
			_, err := l.TryAcquire(t.Context(), "orders:2")
			return errors.Is(err, lockmigrate.ErrStage)
		})
		if _, err := l.Acquire(redistest.Bounded(t, 10*time.Second), "orders:2"); !errors.Is(err, lockmigrate.ErrStage) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it waits for what no waiting mends: %v", err)
		}
		release(t, k) // what was taken can be given back

		// A holder finishes its work: its lock is renewed beyond the lease that it was taken under.
		correct(t, store, shortest(time.Second))
		redistest.Await(t, "the Locker takes the correction over", func() bool { return l.Ready(t.Context()) == nil })
		moveTo(t, store, stages.Bridge)
		runs(t, l, lockmigrate.StageBridge)
		k = acquire(t, l, "orders:1")
		correct(t, store, shortest(time.Hour))
		redistest.Await(t, "the refusal", func() bool { return l.Ready(t.Context()) != nil })
		select {
		case <-k.Context().Done():
			t.Errorf("a holder lost its lock because the record does not fit any more: %v", context.Cause(k.Context()))
		case <-time.After(2500 * time.Millisecond): // more than its TTL and its member's lease
		}
		release(t, k)
	})
}

// TestReady without a Namespace, before the server answers, and after Close.
func TestReady(t *testing.T) {
	s := redistest.Real(t)
	alone := newLocker(t, s, quick())
	assert.NoError(t, alone.Ready(t.Context()), "without a Namespace:")
	store := namespace(t, s)
	link := redistest.NewLink(t, s.Addr)
	link.Partition()
	cut := opened(t, poolTo(t, link.Addr), quick(ofOrders, func(o *compat.Options) { o.ReplyTimeout, o.Member = 100*time.Millisecond, "pay-7" }))
	if err := cut.Ready(redistest.Bounded(t, 300*time.Millisecond)); !errors.Is(err, lockmigrate.ErrStage) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the server cannot be reached: %v", err)
	}
	link.Heal()
	assert.NoError(t, cut.Ready(redistest.Bounded(t, 20*time.Second)), "after it can be reached:")
	var m stages.Member
	redistest.Await(t, "a report of what it runs", func() bool {
		view, err := store.Show(t.Context())
		require.NoError(t, err)
		require.Len(t, view.Members, 1)
		m = view.Members[0]
		return m.Epoch == 1 && m.Stage == stages.Legacy
	})
	assert.True(t, strings.HasPrefix(m.ID, "pay-7/") && m.Info.Host != "" && m.Skew.Abs() < time.Minute, "%+v", m)
	cut.Close()
	view, err := store.Show(t.Context())
	require.NoError(t, err)
	assert.Empty(t, view.Members, "it leaves with Close")
	assert.ErrorIs(t, cut.Ready(t.Context()), lockmigrate.ErrStage, "after Close")
}

// TestTheRecordKnowsTheLongestLock: what a member reports bounds every lock that it may take afterwards, also the
// first ones, and also when the record is changed under it. A stage change that waits for a silent member relies on that.
func TestTheRecordKnowsTheLongestLock(t *testing.T) {
	s := redistest.Real(t)
	store := namespaceOf(t, s, stages.Record{Shortest: 10 * time.Minute})
	proxy := redistest.NewProxy(t, s)
	type told struct{ epoch, longest int64 }
	reports := make(chan told, 1000)
	proxy.Before(func(words []string) {
		if strings.HasPrefix(words[0], "EVAL") && len(words) > 16 && words[3] == stages.RecordKey("orders") && words[15] != "0" {
			epoch, _ := strconv.ParseInt(words[8], 10, 64)
			longest, _ := strconv.ParseInt(words[12], 10, 64)
			reports <- told{epoch, longest}
		}
	})
	l := opened(t, poolTo(t, proxy.Addr), compat.Options{Namespace: "orders", TTL: 200 * time.Millisecond, CommandDelay: 20 * time.Millisecond})
	require.NoError(t, l.Ready(redistest.Bounded(t, 10*time.Second)), "the default lease follows the record:")
	release(t, acquire(t, l, "orders:1"))
	for i, lease := range []time.Duration{time.Hour, time.Minute} {
		correct(t, store, shortest(lease))
		redistest.Await(t, "the new epoch", func() bool { _, e, err := l.Stage(); return err == nil && e == int64(i+2) })
	}
	needed := map[int64]int64{-1: (10 * time.Minute).Milliseconds(), 1: (10 * time.Minute).Milliseconds(), 2: time.Hour.Milliseconds(), 3: time.Hour.Milliseconds()}
	seen := map[int64]bool{}
	for deadline := time.Now().Add(20 * time.Second); !seen[3] && time.Now().Before(deadline); {
		r := <-reports
		seen[r.epoch] = true
		assert.True(t, r.longest >= needed[r.epoch], "in epoch %d it reports %d ms", r.epoch, r.longest)
	}
	assert.False(t, !seen[-1] || !seen[1] || !seen[2] || !seen[3], "reports of epochs %v", seen)
}

// TestAClockOfTheLastCentury: the bridge would not read what stage legacy writes by such a clock, so nobody writes it.
func TestAClockOfTheLastCentury(t *testing.T) {
	s := redistest.Mini(t)
	s.Mini.SetTime(time.Date(2001, 9, 1, 0, 0, 0, 0, time.UTC))
	namespace(t, s)
	for name, l := range map[string]compat.Locker{
		"namespace": newLocker(t, s, quick(ofOrders)),
	} {
		_, err := l.Acquire(redistest.Bounded(t, 10*time.Second), "orders:1")
		if !errors.Is(err, lockmigrate.ErrStage) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "clock stands before 2001-09-09") {
			t.Errorf("%s: %v", name, err)
		}
	}
	assert.True(t, s.Value("orders:1") == "", "it wrote a value")
}

// TestAServerClockThatJumps: the bound of a report is of the server's clock as it was. When that clock is set, the next
// report has another bound, and the member goes on.
func TestAServerClockThatJumps(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	clock := time.Now().Truncate(time.Millisecond)
	s.Mini.SetTime(clock)
	store := namespace(t, s)
	l := newLocker(t, s, quick(ofOrders))
	require.NoError(t, l.Ready(redistest.Bounded(t, 10*time.Second)))
	for _, jump := range []time.Duration{time.Hour, -30 * time.Minute, 24 * time.Hour} {
		clock = clock.Add(jump)
		s.Mini.SetTime(clock)
		redistest.Await(t, fmt.Sprint("a report after a jump of ", jump), func() bool {
			view, err := store.Show(t.Context())
			return err == nil && len(view.Members) == 1 && view.Members[0].Seen == 0
		})
		release(t, acquire(t, l, "orders:1"))
	}
}

// TestRightsThatWereNeverThere: a user that may not read the record, or not run scripts, is told so by the first call,
// and works as soon as it has the right.
func TestRightsThatWereNeverThere(t *testing.T) {
	s := redistest.Real(t)
	namespace(t, s)
	for missing, rules := range map[string][2]string{
		"the namespace's keys": {"+@all ~orders* &*", "~*"},
		"EVALSHA":              {"+@all ~* &* -evalsha", "+evalsha"},
		"HSET":                 {"+@all ~* &* -hset", "+hset"},
		"the password":         {"+@all ~* &* >other", ">pw"},
	} {
		user := []any{"SETUSER", "app", "reset", "on"}
		if missing != "the password" {
			user = append(user, ">pw")
		}
		for _, r := range strings.Fields(rules[0]) {
			user = append(user, r)
		}
		s.Do("ACL", user...)
		pool := &redis.Pool{DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("pw"))
		}}
		l, err := compat.New(pool, quick(ofOrders))
		require.NoError(t, err)
		_, err = l.Acquire(redistest.Bounded(t, 10*time.Second), "orders:1")
		assert.False(t, !errors.Is(err, lockmigrate.ErrStage) || errors.Is(err, context.DeadlineExceeded), "without %s: %v", missing, err)
		s.Do("ACL", "SETUSER", "app", rules[1])
		redistest.Await(t, "the Locker works with "+missing, func() bool { return l.Ready(t.Context()) == nil })
		l.Close()
		_ = pool.Close()
	}
}

// TestAGoodbyeWithoutARecord: the record is gone, by a flush or because an operator has deleted it. A member that is
// closed then leaves nothing behind that nobody would remove.
func TestAGoodbyeWithoutARecord(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		namespace(t, s)
		l := newLocker(t, s, quick(ofOrders))
		require.NoError(t, l.Ready(redistest.Bounded(t, time.Minute)))
		s.Do("FLUSHALL")
		l.Close()
		assert.Equal(t, int64(0), s.Do("EXISTS", stages.MembersKey("orders")), "it has left an entry")
	})
}
