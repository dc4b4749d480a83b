package compat_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func namespace(t testing.TB, s *redistest.Server) *stages.Store {
	t.Helper()
	return namespaceOf(t, s, stages.Record{Shortest: time.Second})
}

func ofOrders(o *compat.Options) { o.Namespace = "orders" }

func moveTo(t testing.TB, store *stages.Store, to stages.Stage) {
	t.Helper()
	ctx := redistest.Bounded(t, 20*time.Second)
	require.NoError(t, (&stages.Mover{Store: store, Look: 5 * time.Millisecond}).Run(ctx, to, func(stages.View, []stages.Blocker) {}))
}

func runs(t testing.TB, l compat.Locker, want lockmigrate.Stage) {
	t.Helper()
	redistest.Await(t, fmt.Sprint("stage ", want), func() bool {
		stage, _, err := l.Stage()
		return err == nil && stage == want
	})
}

// TestLocksOutliveAStageChange (G7).
func TestLocksOutliveAStageChange(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespace(t, s)
		l := newLocker(t, s, quick(ofOrders))
		old := acquire(t, l, "orders:1")
		if _, err := strconv.ParseInt(old.Token(), 10, 64); err != nil || old.Stage() != lockmigrate.StageLegacy {
			t.Fatalf("stage %v, token %s", old.Stage(), old.Token())
		}
		moveTo(t, store, stages.Bridge)
		runs(t, l, lockmigrate.StageBridge)
		assert.ErrorIs(t, failed(l.TryAcquire(t.Context(), "orders:1")), lockmigrate.ErrNotAcquired, "beside a lock of the stage before")
		if err := old.Renew(t.Context()); err != nil || old.Token() != s.Value("orders:1") || s.Value(protocol.GuardKey("orders:1")) != "" {
			t.Errorf("renewed as what it is not: %v", err)
		}

		// The next stage is two away from the lock that is held.
		view, _ := store.Show(t.Context())
		redistest.Await(t, "the report of the lock that blocks", func() bool {
			blockers, err := store.Move(t.Context(), view.Record.Epoch, stages.Modern, true)
			return err == nil && len(blockers) == 1 && blockers[0].Why == "holds"
		})
		release(t, old)
		assert.True(t, s.Value("orders:1") == "", "the release left the legacy value")
		k := acquire(t, l, "orders:1")
		moveTo(t, store, stages.Modern)
		runs(t, l, lockmigrate.StageModern)
		release(t, k)
		k = acquire(t, l, "orders:1")
		assert.True(t, k.Stage() == lockmigrate.StageModern, "stage %v", k.Stage())
		release(t, k)
	})
}

// TestMemberFailsClosed (G6): a member without a record, or that cannot report, acquires nothing, and
// the error of the wait says why.
func TestMemberFailsClosed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.ReplyTimeout = 300 * time.Millisecond }))
		redistest.Await(t, "the refusal without a record", func() bool {
			_, err := l.TryAcquire(t.Context(), "orders:1")
			return errors.Is(err, lockmigrate.ErrStage) && strings.Contains(err.Error(), "no such namespace")
		})
		namespace(t, s)
		redistest.Await(t, "the record, at a later report", func() bool { return l.Ready(t.Context()) == nil })
		release(t, acquire(t, l, "orders:1"))

		s.Do("DEL", stages.RecordKey("orders"))
		redistest.Await(t, "the refusal after the record is gone", func() bool {
			k, err := l.TryAcquire(t.Context(), "orders:1")
			if err == nil {
				release(t, k)
			}
			return errors.Is(err, lockmigrate.ErrStage)
		})
		ctx := redistest.Bounded(t, 50*time.Millisecond)
		_, err := l.Acquire(ctx, "orders:1")
		if !errors.Is(err, lockmigrate.ErrNotAcquired) || !errors.Is(err, lockmigrate.ErrStage) || !strings.Contains(err.Error(), "no such namespace") {
			t.Errorf("the wait does not say why: %v", err)
		}
	})
}

// TestMemberOfANewerProtocol: where the record's protocol is one that this build does not know, a member acquires nothing from its next report
// on, and says which build to use; so does one that joins. It reads nothing into the record, and works again when that can be read.
func TestMemberOfANewerProtocol(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		namespace(t, s)
		told := make(chan error, 9)
		l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) {
			o.Observer = func(e lockmigrate.Event) {
				if e.Kind == lockmigrate.EventStage && e.Err != nil {
					told <- e.Err
				}
			}
		}))
		release(t, acquire(t, l, "orders:1"))
		s.Do("HSET", stages.RecordKey("orders"), "protocol", "2 lockmigrate v0.7.0", "patterns", "what else", "stage", "x")
		late := newLocker(t, s, quick(ofOrders))
		for _, member := range []compat.Locker{l, late} {
			redistest.Await(t, "the refusal of another protocol", func() bool {
				k, err := member.TryAcquire(t.Context(), "orders:1")
				if err == nil {
					release(t, k)
				}
				return errors.Is(err, lockmigrate.ErrStage) && strings.Contains(err.Error(), "use lockmigrate v0.7.0")
			})
			_, err := member.Acquire(t.Context(), "orders:1") // no wait mends it
			if err == nil || !strings.Contains(err.Error(), "use lockmigrate v0.7.0") {
				t.Errorf("a wait: %v", err)
			}
		}
		if err := <-told; !strings.Contains(err.Error(), "use lockmigrate v0.7.0") {
			t.Errorf("the observer is told: %v", err)
		}
		s.Do("DEL", stages.RecordKey("orders"), stages.MembersKey("orders"))
		namespace(t, s)
		redistest.Await(t, "a record that can be read", func() bool { return l.Ready(t.Context()) == nil && late.Ready(t.Context()) == nil })
		release(t, acquire(t, l, "orders:1"))
	})
}

// TestLateCommandsOfAMemberAreRefused (G6): what a member sends in its lease and the server gets after
// it does nothing, in every stage. A proxy holds the command back for that long.
func TestLateCommandsOfAMemberAreRefused(t *testing.T) {
	defer compat.ShortenMemberLease(600 * time.Millisecond)()
	s := redistest.Real(t)
	store := namespace(t, s)
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		moveTo(t, store, stage)
		proxy := redistest.NewProxy(t, s)
		l := opened(t, poolTo(t, proxy.Addr), quick(ofOrders, func(o *compat.Options) { o.TTL, o.ReplyTimeout = 12*time.Second, 10*time.Second }))
		runs(t, l, stage)
		release(t, acquire(t, l, "orders:warm")) // the scripts are known, the clock is read

		late := make(chan struct{})
		arrived := make(chan struct{}, 1)
		proxy.Before(func(words []string) {
			if len(words) > 3 && words[3] == "orders:late" {
				select {
				case arrived <- struct{}{}:
				default:
				}
				<-late
			}
			if strings.HasPrefix(words[0], "EVAL") && len(words) > 3 && words[3] == stages.RecordKey("orders") {
				<-late // it cannot report either
			}
		})
		result := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(t.Context(), "orders:late")
			result <- err
		}()
		<-arrived
		redistest.Await(t, "the end of the member's lease", func() bool {
			view, err := store.Show(t.Context())
			return err == nil && len(view.Members) == 1 && view.Members[0].Left < 0
		})
		close(late)
		assert.ErrorIs(t, <-result, lockmigrate.ErrStage, "stage %v: a command that came after the lease", stage)
		assert.Equal(t, "", s.Value("orders:late")+s.Value(protocol.GuardKey("orders:late")), "stage %v: it left", stage)
		l.Close()
		redistest.Await(t, "the member has run out or left", func() bool {
			view, err := store.Show(t.Context())
			return err == nil && len(view.Members) == 0
		})
	}
}

// TestARestoredRecord: the server comes back from a snapshot that is two stages old. A member of before and a process that starts
// then do not run stages two apart, and both work again.
func TestARestoredRecord(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespace(t, s)
		first := newLocker(t, s, quick(ofOrders))
		runs(t, first, lockmigrate.StageLegacy)
		snapshot := s.Do("HGETALL", stages.RecordKey("orders")).([]any)
		moveTo(t, store, stages.Bridge)
		runs(t, first, lockmigrate.StageBridge)
		moveTo(t, store, stages.Modern)
		runs(t, first, lockmigrate.StageModern)
		held := acquire(t, first, "orders:1")
		s.Kill()
		s.Start()
		s.Do("HSET", append([]any{stages.RecordKey("orders")}, snapshot...)...)
		second := newLocker(t, s, quick(ofOrders))
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			newer, _, newerErr := second.Stage()
			older, _, olderErr := first.Stage()
			later := olderErr == nil && older == lockmigrate.StageModern || held.Context().Err() == nil
			if later && newerErr == nil && newer == lockmigrate.StageLegacy {
				t.Fatalf("legacy beside modern; the older member: %v, %v, its lock: %v", older, olderErr, context.Cause(held.Context()))
			}
			if olderErr == nil && newerErr == nil && older == lockmigrate.StageLegacy && newer == lockmigrate.StageLegacy {
				break
			}
			require.False(t, time.Now().After(deadline), "they do not work again: %v, %v", olderErr, newerErr)
		}
		release(t, acquire(t, second, "orders:1"))
		assert.ErrorIs(t, context.Cause(held.Context()), lockmigrate.ErrLost, "the older member's lock")
	})
}

// TestReadySaysWhy, when its context ends before the member has joined.
func TestReadySaysWhy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(s *redistest.Server)
		says   string
	}{
		"not reachable":   {func(s *redistest.Server) { s.Kill() }, "connection refused"},
		"out of memory":   {func(s *redistest.Server) { s.Do("CONFIG", "SET", "maxmemory", "1") }, "OOM"},
		"read only":       {func(s *redistest.Server) { s.Do("REPLICAOF", "127.0.0.1", "1") }, "READONLY"},
		"restarted":       {func(s *redistest.Server) { s.Do("HSET", stages.RecordKey("orders"), "server", "another") }, "restarted"},
		"a broken record": {func(s *redistest.Server) { s.Do("HSET", stages.RecordKey("orders"), "stage", "9") }, "stage 9 is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			namespace(t, s)
			c.before(s)
			l := newLocker(t, s, quick(ofOrders))
			err := l.Ready(redistest.Bounded(t, time.Second))
			if !errors.Is(err, lockmigrate.ErrStage) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// later returns a legacy value of a client whose lease began now.
func later(lease time.Duration) int64 { return time.Now().Add(lease).UnixMilli() }

const long = time.Hour

// settling are options under which a takeover settles long enough to be interfered with.
func settling(change ...func(*compat.Options)) compat.Options {
	return quick(append([]func(*compat.Options){func(o *compat.Options) {
		o.CommandDelay, o.ShortestLease, o.TTL = 200*time.Millisecond, 2*time.Second, 2*time.Second
	}}, change...)...)
}

// takeOver starts an acquisition of a key that a crashed legacy client left, and returns when the key is
// taken over and settles.
func takeOver(t *testing.T, s *redistest.Server, l compat.Locker, key string) (bridge string, result chan error, locked chan lockmigrate.Lock) {
	t.Helper()
	s.Do("SET", key, later(-long))
	result, locked = make(chan error, 1), make(chan lockmigrate.Lock, 1)
	go func() {
		k, err := l.TryAcquire(t.Context(), key)
		locked <- k
		result <- err
	}()
	redistest.Await(t, "the takeover", func() bool { bridge = s.Value(protocol.GuardKey(key)); return bridge != "" })
	require.True(t, s.Value(key) == bridge, "the key holds %q, the guard %q", s.Value(key), bridge)
	return bridge, result, locked
}

// TestClobberWhileSettling (G4): a loser's GETSET after a takeover. The bridge withdraws and waits for the value.
func TestClobberWhileSettling(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling())
		bridge, result, locked := takeOver(t, s, l, "orders")
		clobber := later(long)
		require.Equal(t, bridge, string(s.Do("GETSET", "orders", clobber).([]byte)), "GETSET returned")
		<-locked
		assert.ErrorIs(t, <-result, lockmigrate.ErrNotAcquired, "clobbered")
		assert.False(t, s.Value(protocol.GuardKey("orders")) != "" || s.Value("orders") == bridge, "the bridge did not withdraw")
	})
}

// TestWithdrawingIsWhatKeepsTwoHoldersApart: the holder whose expired value was taken over was alive
// after all; its stale DEL lets another legacy client in while we settle. Putting back would make two
// holders, and no renewal would ever tell (the explorer's ablation shows it); withdrawing does not.
func TestWithdrawingIsWhatKeepsTwoHoldersApart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		intrude := func(key string) string {
			s.Do("DEL", key) // the stale DEL
			fleet, err := legacy.New(s.Pool(), legacy.Options{Lease: time.Minute})
			require.NoError(t, err)
			t.Cleanup(func() { _ = fleet.Close() })
			k, err := fleet.TryAcquire(t.Context(), key)
			require.NoError(t, err, "the legacy client did not get in:")
			return k.Token()
		}

		l := newLocker(t, s, settling())
		_, result, locked := takeOver(t, s, l, "orders")
		theirs := intrude("orders")
		<-locked
		if err := <-result; !errors.Is(err, lockmigrate.ErrNotAcquired) || s.Value("orders") != theirs {
			t.Errorf("beside a legacy holder: %v, the key holds %q", err, s.Value("orders"))
		}
	})
}

// TestStaleDeleteWhileSettling: nobody came in; the lock is repaired, settles again and is ours.
func TestStaleDeleteWhileSettling(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling())
		bridge, result, locked := takeOver(t, s, l, "orders")
		s.Do("DEL", "orders")
		redistest.Await(t, "the repair", func() bool { return s.Value("orders") == bridge })
		k := <-locked
		require.NoError(t, <-result)
		release(t, k)
	})
}

// TestLoserOfDialectBComesBackAsWinner (G4): a jedis-uuid client that found the key vanished clobbers
// whatever has come there, and at its next look takes its own value for expired. So in that dialect the
// bridge settles after every acquisition, and withdraws.
func TestLoserOfDialectBComesBackAsWinner(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s, settling(func(o *compat.Options) { o.Dialect = legacy.Dialect{Name: "jedis-uuid"} }))
		result := make(chan error, 1)
		go func() {
			_, err := l.TryAcquire(t.Context(), "orders")
			result <- err
		}()
		redistest.Await(t, "the acquisition", func() bool { return s.Value("orders") != "" })

		// The client is between its GET, which found nothing, and its GETSET.
		rules := protocol.JedisUUID
		value, _ := rules.Expiry(protocol.InstantOf(time.Now()), time.Minute, "0f0e0d0c-0b0a-4908-8706-050403020100")
		s.Do("GETSET", "orders", value)
		require.True(t, rules.Judge(value, protocol.InstantOf(time.Now()), "0f0e0d0c-0b0a-4908-8706-050403020100") == protocol.Expired, "the client no longer takes its own value for expired")
		assert.ErrorIs(t, <-result, lockmigrate.ErrNotAcquired, "beside a client that comes back as the winner")
		assert.True(t, s.Value("orders") == value, "its value was overwritten by %q", s.Value("orders"))
	})
}

// TestStaleDeleteIsRepaired (G5): within one renewal interval the key is ours again, and meanwhile the
// guard keeps other bridge and modern clients out.
func TestStaleDeleteIsRepaired(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		o := quick()
		l, other := newLocker(t, s, o), newLocker(t, s, o)
		modern := newLocker(t, s, quick(inStage(t, s, lockmigrate.StageModern)))
		k := acquire(t, l, "orders")
		for range 3 {
			s.Do("DEL", "orders")
			deleted := time.Now()
			for _, l := range []compat.Locker{other, modern} {
				assert.ErrorIs(t, failed(l.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "another came in after a stale DEL")
			}
			redistest.Await(t, "the repair", func() bool { return s.Value("orders") == k.Token() })
			assert.LessOrEqual(t, time.Since(deleted), time.Second, "repaired after")
		}
		assert.True(t, k.Context().Err() == nil, "the holder was disturbed: %v", context.Cause(k.Context()))
		release(t, k)
	})
}

// TestDisplacedHolderIsTold (G5): a legacy client came in after a stale DEL. The holder is told within
// one renewal interval, its guard stays until it has released, and its release harms nobody.
func TestDisplacedHolderIsTold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		o := quick()
		l, other := newLocker(t, s, o), newLocker(t, s, o)
		k := acquire(t, l, "orders")
		s.Do("DEL", "orders")
		theirs := later(long)
		s.Do("SETNX", "orders", theirs)
		assert.LessOrEqual(t, lost(t, k, 5*time.Second), time.Second, "told after")
		if cause := context.Cause(k.Context()); !strings.Contains(cause.Error(), "displaced") || !strings.Contains(cause.Error(), "or overwrote the key") {
			t.Errorf("cause %v", cause)
		}
		s.Do("DEL", "orders") // the legacy client has finished; the displaced holder may still be at work
		assert.ErrorIs(t, failed(other.TryAcquire(t.Context(), "orders")), lockmigrate.ErrNotAcquired, "another bridge client came in beside the displaced one")
		s.Do("SETNX", "orders", theirs)
		assert.ErrorIs(t, k.Release(t.Context()), lockmigrate.ErrLost, "release of a displaced lock")
		assert.False(t, s.Value("orders") == "" || s.Value(protocol.GuardKey("orders")) != "", "the release took the legacy client's value, or left its own guard")
	})
}

// TestADisplacementBehindItsCallerIsToldInFull: the caller of Release leaves while the server has the command. The holder is
// told, and also whose value stands there.
func TestADisplacementBehindItsCallerIsToldInFull(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("holder")
		k := acquire(t, compat.Tune(opened(t, route.Pool(), quick()), 900*time.Millisecond, 0), "orders")
		theirs := fmt.Sprint(later(long))
		s.Do("SET", "orders", theirs)
		ctx := redistest.Bounded(t, 10*time.Millisecond)
		route.Next(1, world.Fault{LateReply: 50 * time.Millisecond}) // Release is back by then
		require.ErrorIs(t, k.Release(ctx), lockmigrate.ErrUnknownOutcome, "release")
		lost(t, k, 5*time.Second)
		var e *lockmigrate.Error
		if err := context.Cause(k.Context()); !errors.As(err, &e) || e.Reason != lockmigrate.ReasonDisplaced || e.Value != theirs {
			t.Errorf("the holder is told %v", err)
		}
	})
}

// TestADisplacementIsToldThoughItsReplyIsLost: the first release runs, and nobody hears its answer. The second one still tells, and
// then nothing of the holder is left.
func TestADisplacementIsToldThoughItsReplyIsLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		route := s.Route("holder")
		l := compat.Tune(opened(t, route.Pool(), quick()), 900*time.Millisecond, 0)
		if err := acquire(t, l, "orders").Release(t.Context()); err != nil { // the server knows the scripts from here on
			t.Fatal(err)
		}
		k := acquire(t, l, "orders")
		theirs := fmt.Sprint(later(long))
		s.Do("SET", "orders", theirs)
		before := route.Commands()
		route.Next(1, world.Fault{LoseReply: true})
		err := k.Release(t.Context())
		var e *lockmigrate.Error
		assert.False(t, !errors.As(err, &e) || !errors.Is(err, lockmigrate.ErrLost) || e.Reason != lockmigrate.ReasonDisplaced || e.Value != theirs, "release: %v", err)
		assert.Equal(t, " EVALSHA EVALSHA EVALSHA", strings.TrimPrefix(route.Commands(), before), "lost, told, cleared")
		assert.False(t, s.Value("orders") != theirs || s.Value(protocol.GuardKey("orders")) != "", "the release took the legacy client's value, or left its own guard")
	})
}
