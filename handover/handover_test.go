package handover_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

const key = "lock.order.17"

// TestStagesForthAndBack: a fleet works while its stages move forth and back, with members that are cut off from the record, from Old and from New,
// and the servers' clocks an hour apart. Nobody is inside beside another, and at stages old and both fencing tokens grow.
func TestStagesForthAndBack(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTown(t, seed, func(town *town) {
				town.a.Offset, town.b.Offset = time.Duration(town.Rand.IntN(3)-1)*time.Hour, 0
				var members []*member
				for i := range 4 {
					members = append(members, town.member(fmt.Sprint("m", i)))
				}
				ready(town, members...)
				r := town.referee()
				ctx, stop := context.WithCancel(context.Background())
				var work sync.WaitGroup
				for _, m := range members {
					work.Go(func() { r.work(ctx, m, 120*time.Millisecond) })
				}
				var counts [3]int64
				faults := func() {
					m := members[town.Rand.IntN(len(members))]
					route := []*world.Route{m.toA, m.toB, m.toClerk}[town.Rand.IntN(3)]
					[]func(){route.Partition, route.HalfOpen, route.Cut}[town.Rand.IntN(3)]()
					time.Sleep(time.Duration(town.Rand.IntN(12_000)) * time.Millisecond)
					route.Heal()
				}
				for _, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageNew, lockmigrate.StageBoth, lockmigrate.StageOld, lockmigrate.StageBoth, lockmigrate.StageNew} {
					before := r.Turns()
					time.Sleep(2 * time.Second)
					faults()
					town.move(to)
					view, _ := town.store.Show(ctx)
					counts[stages.Number(view.Record.Stage)] += r.Turns() - before
				}
				time.Sleep(5 * time.Second)
				stop()
				work.Wait()
				assert.Greater(t, r.Turns(), int64(60))
				for stage, n := range counts {
					assert.Positive(t, n, "turns before stage %v", lockmigrate.Stage(stage))
				}
				held, _ := town.a.Value(key)
				assert.Empty(t, held)
			})
		})
	}
}

// TestFencesGrowAcrossTheServers: Old's clock is an hour ahead, so its tokens are larger than those that New would draw.
func TestFencesGrowAcrossTheServers(t *testing.T) {
	inTown(t, 1, func(town *town) {
		town.a.Offset = time.Hour
		m := town.joins("m")
		last := int64(0)
		for _, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageNew} {
			for range 2 {
				lock, err := m.TryAcquire(context.Background(), key)
				require.NoError(t, err)
				assert.Greater(t, lock.Fence(), last)
				last = lock.Fence()
				require.NoError(t, lock.Release(context.Background()))
			}
			town.reach(to)
		}
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		assert.Greater(t, lock.Fence(), last, "New draws on from Old's")
		require.NoError(t, lock.Release(context.Background()))
	})
}

// TestWaitersFollowTheStage: one who waits for New at stage both, while somebody of stage new has it, gives Old back when the stage moves on, and is
// served by New alone.
func TestWaitersFollowTheStage(t *testing.T) {
	inTown(t, 2, func(town *town) {
		m := town.joins("m")
		town.reach(lockmigrate.StageBoth)
		other, err := modern.New(town.b.Pool(), modern.Options{TTL: time.Minute})
		require.NoError(t, err)
		town.Cleanup(func() { _ = other.Close() })
		theirs, err := other.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		got := make(chan lockmigrate.Lock)
		go func() {
			lock, err := m.Acquire(context.Background(), key)
			assert.NoError(t, err)
			got <- lock
		}()
		time.Sleep(time.Second)
		onA, _ := town.a.Value(key)
		assert.NotEmpty(t, onA, "it holds Old and waits for New")
		town.reach(lockmigrate.StageNew)
		onA, _ = town.a.Value(key)
		assert.Empty(t, onA, "Old was given back when the stage moved")
		require.NoError(t, theirs.Release(context.Background()))
		lock := <-got
		stage, _, err := m.Stage()
		require.NoError(t, err)
		assert.Equal(t, lockmigrate.StageNew, stage)
		require.NoError(t, lock.Release(context.Background()))
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrReleased)
	})
}

// TestEitherHalfIsTold: whichever half is lost, the holder is told, and the other half is given back when its lease of then is over.
func TestEitherHalfIsTold(t *testing.T) {
	for _, which := range []string{"old", "new"} {
		t.Run(which, func(t *testing.T) {
			inTown(t, 3, func(town *town) {
				m := town.member("m")
				ready(town, m)
				town.reach(lockmigrate.StageBoth)
				lock, err := m.TryAcquire(context.Background(), key)
				require.NoError(t, err)
				server, other := town.a, town.b
				if which == "new" {
					server, other = other, server
				}
				server.Do("FLUSHALL")
				server.Do("SET", key, "6123456789012345678", "PX", 60_000)
				ended(t, lock, time.Minute)
				var lost *lockmigrate.Error
				require.ErrorAs(t, context.Cause(lock.Context()), &lost)
				assert.ErrorIs(t, lost, lockmigrate.ErrLost)
				time.Sleep(4 * time.Second)
				left, _ := other.Value(key)
				assert.Empty(t, left, "nobody released it")
				assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrLost)
			})
		})
	}
}

// ended waits for the end of a holder's context.
func ended(t *testing.T, lock lockmigrate.Lock, within time.Duration) {
	t.Helper()
	select {
	case <-lock.Context().Done():
	case <-time.After(within):
		t.Fatal("the holder is not told")
	}
}

// TestTheLeaseEndsTheHolder: a member that cannot report is told at the end of its lease that its locks are lost, though both halves stand.
func TestTheLeaseEndsTheHolder(t *testing.T) {
	inTown(t, 4, func(town *town) {
		m := town.joins("m")
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		began := time.Now()
		m.toClerk.Partition()
		ended(t, lock, time.Minute)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost)
		assert.LessOrEqual(t, time.Since(began), lease)
		assert.Greater(t, time.Since(began), lease/3)
		m.toClerk.Heal()
		require.NoError(t, m.Ready(context.Background()))
		time.Sleep(4 * time.Second)
		again, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err, "it works again, and the lost lock was given back")
		require.NoError(t, again.Release(context.Background()))
	})
}

// TestNothingAfterTheLease: a half that comes after the member's lease is given back. TryAcquire gets ErrStage; Acquire waits for the next lease.
func TestNothingAfterTheLease(t *testing.T) {
	inTown(t, 5, func(town *town) {
		gate := make(chan struct{})
		var given atomic.Int32
		take := func(context.Context, string) (int, error) { <-gate; return 1, nil }
		m := town.theirs(true, handover.Funcs[int]{
			Acquire:    take,
			TryAcquire: take,
			Release:    func(context.Context, int) error { given.Add(1); return nil },
			TTL:        time.Hour,
		})
		failed := redistest.BeginTurn(context.Background(), m.TryAcquire, key)
		waits := redistest.BeginTurn(context.Background(), m.Acquire, key)
		time.Sleep(time.Second)
		m.toClerk.Partition()
		time.Sleep(2 * lease)
		close(gate)
		assert.ErrorIs(t, <-failed, lockmigrate.ErrStage)
		time.Sleep(time.Second)
		assert.EqualValues(t, 2, given.Load())
		assert.Empty(t, waits)
		m.toClerk.Heal()
		assert.NoError(t, <-waits)
	})
}

// TestAnAttemptUnderWayIsInTheWay: an attempt of stage new that has not come back yet may hold New, so the stage does not go back to old beside it.
func TestAnAttemptUnderWayIsInTheWay(t *testing.T) {
	inTown(t, 10, func(town *town) {
		gate := make(chan struct{})
		m := town.theirs(false, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { <-gate; return 1, nil },
			Release: func(context.Context, int) error { return nil },
			TTL:     time.Hour,
		})
		town.reach(lockmigrate.StageBoth)
		town.reach(lockmigrate.StageNew)
		ctx, cancel := context.WithCancel(context.Background())
		left := redistest.BeginTurn(ctx, m.Acquire, key)
		time.Sleep(time.Second)
		town.move(lockmigrate.StageBoth)
		time.Sleep(2 * lease)
		view, err := town.store.Show(context.Background())
		require.NoError(t, err)
		blockers, err := town.store.Move(context.Background(), view.Record.Epoch, lockmigrate.StageOld, true)
		require.NoError(t, err)
		if assert.Len(t, blockers, 1) {
			assert.Equal(t, "holds", blockers[0].Why)
		}
		cancel()
		close(gate)
		assert.Error(t, <-left)
		town.move(lockmigrate.StageOld)
	})
}

// TestASilentMemberIsWaitedFor: a member that holds Old alone and is cut off from the record keeps the stage from new until its lease is over, and
// its holder is told before.
func TestASilentMemberIsWaitedFor(t *testing.T) {
	inTown(t, 11, func(town *town) {
		silent, other := town.member("silent"), town.member("other")
		ready(town, silent, other)
		lock, err := silent.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		silent.toClerk.Partition()
		town.move(lockmigrate.StageBoth)
		town.move(lockmigrate.StageNew)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrLost, "the stage moved beside a holder")
		silent.toClerk.Heal()
	})
}

// TestOtherHalvesAreUnfit: a member whose Old is another server acquires nothing, and the record says why.
func TestOtherHalvesAreUnfit(t *testing.T) {
	inTown(t, 6, func(town *town) {
		elsewhere := town.Server()
		stranger, err := modern.New(elsewhere.Pool(), modern.Options{})
		require.NoError(t, err)
		town.Cleanup(func() { _ = stranger.Close() })
		m := town.member("m", func(o *handover.Options) { o.Old = stranger })
		err = m.Ready(context.Background())
		assert.ErrorIs(t, err, lockmigrate.ErrStage)
		assert.ErrorContains(t, err, "Old of this process")
		_, err = m.TryAcquire(context.Background(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrStage)
		time.Sleep(time.Second)
		view, err := town.store.Show(context.Background())
		require.NoError(t, err)
		require.Len(t, view.Members, 1)
		assert.Contains(t, view.Members[0].Misfit, "two minds")
		corrected := func() {
			elsewhere.Do("DEL", stages.MarkKey("to-b"))
			mark, err := stages.WriteMark(context.Background(), elsewhere.Pool(), "to-b", time.Second)
			require.NoError(t, err)
			view, err := town.store.Show(context.Background())
			require.NoError(t, err)
			to := view.Record
			to.Handover = &stages.Halves{Old: stages.Half{Mark: mark}, New: view.Record.Handover.New}
			_, err = town.store.Set(context.Background(), view.Record.Epoch, view.Record, to, true)
			require.NoError(t, err)
		}
		corrected()
		time.Sleep(lease)
		ready(town, m)
		corrected() // as after a restart without a memory: the member reads the mark anew before it says anything
		for range lease / time.Millisecond {
			_, _, err := m.Stage()
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
		}
	})
}

// TestOneOrder: two members at stage both that want one key never wait for each other.
func TestOneOrder(t *testing.T) {
	inTown(t, 7, func(town *town) {
		a, b := town.member("a"), town.member("b")
		ready(town, a, b)
		town.reach(lockmigrate.StageBoth)
		r := town.referee()
		ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
		defer stop()
		var work sync.WaitGroup
		for _, m := range []*member{a, b, a, b} {
			work.Go(func() { r.work(ctx, m, time.Millisecond) })
		}
		work.Wait()
		assert.Zero(t, r.back.Load())
		assert.Greater(t, r.Turns(), int64(100))
	})
}

// TestBadInput: each is a clear error, and nothing is held.
func TestBadInput(t *testing.T) {
	inTown(t, 8, func(town *town) {
		m := town.member("m")
		old := m.old
		nothing := handover.Funcs[int]{Acquire: func(context.Context, string) (int, error) { return 0, nil }, Release: func(context.Context, int) error { return nil }}
		timed := nothing
		timed.Extend = func(context.Context, int) error { return nil }
		for want, o := range map[string]handover.Options{
			"Old and New are required":   {Namespace: "to-b", Old: old},
			"it would wait for itself":   {Namespace: "to-b", Old: old, New: old},
			"a namespace's name":         {Old: old, New: m.new},
			"nobody hears of a loss":     {Namespace: "to-b", Old: handover.Wrap("x", nothing), New: m.new},
			"Old and New are both":       {Namespace: "to-b", Old: handover.Wrap("x", timed), New: handover.Wrap("x", timed)},
			"Extend needs TTL":           {Namespace: "to-b", Old: handover.Wrap("x", timed), New: m.new},
			"needs a name":               {Namespace: "to-b", Old: handover.Wrap("", nothing), New: m.new},
			"at least 300ms":             {Namespace: "to-b", Old: old, New: m.new, Lease: time.Millisecond},
			"must not be negative":       {Namespace: "to-b", Old: old, New: m.new, Wait: -time.Second},
			"the pool is nil or a typed": {},
		} {
			if strings.HasPrefix(want, "the pool") {
				_, err := handover.New(nil, handover.Options{Namespace: "to-b", Old: old, New: m.new})
				assert.Error(t, err)
				continue
			}
			_, err := handover.New(town.b.Pool(), o)
			if assert.Error(t, err, want) && want != "must not be negative" {
				assert.ErrorContains(t, err, want)
			}
		}
		_, err := m.TryAcquire(context.Background(), "")
		assert.ErrorContains(t, err, "the key is empty")
		ready(town, m)
		_, err = m.TryAcquire(context.Background(), "other.key")
		assert.ErrorIs(t, err, lockmigrate.ErrStage)

		other := &stages.Store{Pool: town.b.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
		require.NoError(t, other.Init(context.Background(), stages.Record{Patterns: []string{"order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second}))
		wrong := town.member("wrong", func(o *handover.Options) { o.Namespace = "orders" })
		assert.ErrorContains(t, wrong.Ready(context.Background()), "package compat follows it")
		bridge, err := compat.New(town.b.Pool(), compat.Options{Namespace: "to-b"})
		require.NoError(t, err)
		town.Cleanup(func() { _ = bridge.Close() })
		assert.ErrorContains(t, bridge.Ready(context.Background()), "package handover")

		held, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		for range 2 {
			assert.ErrorContains(t, m.Close(), "locks held: 1")
		}
		assert.ErrorIs(t, context.Cause(held.Context()), lockmigrate.ErrLost)
		_, err = m.Acquire(context.Background(), key)
		assert.ErrorContains(t, err, "closed")
	})
}

// TestTheRecordsNameMovesToAnotherServer: idle connections lead to the old server, which refuses each report.
func TestTheRecordsNameMovesToAnotherServer(t *testing.T) {
	behind, now := redistest.Mini(t), redistest.Mini(t)
	pool := behind.Pool()
	redistest.Idle(t, pool)
	behind.Mini.SetError("READONLY You can't write against a read only replica.")
	pool.Dial, pool.DialContext = nil, now.Dial
	old, err := modern.New(behind.Pool(), modern.Options{})
	require.NoError(t, err)
	defer old.Close()
	l, err := handover.New(pool, handover.Options{Namespace: "to-b", Old: old, New: handover.Wrap("etcd", handover.Funcs[int]{
		Acquire: func(context.Context, string) (int, error) { return 0, nil }, Release: func(context.Context, int) error { return nil },
		Extend: func(context.Context, int) error { return nil }, TTL: time.Minute,
	})})
	require.NoError(t, err)
	defer l.Close()
	ctx := redistest.Bounded(t, 10*time.Second)
	assert.NotErrorIs(t, l.Ready(ctx), context.DeadlineExceeded, "the new server says at once that it has no such record")
}

// TestOneLockForBothHalves: two Lockers of one key on one server are one lock, which would wait for itself. The marks tell.
func TestOneLockForBothHalves(t *testing.T) {
	inTown(t, 14, func(town *town) {
		twin, err := modern.New(town.b.Pool(), modern.Options{})
		require.NoError(t, err)
		town.Cleanup(func() { _ = twin.Close() })
		m := town.member("m", func(o *handover.Options) { o.Old = twin })
		assert.ErrorContains(t, m.Ready(context.Background()), "one server and have one key")
		_, err = m.TryAcquire(context.Background(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrStage)
		held, _ := town.b.Value(key)
		assert.Empty(t, held)
	})
}

// TestAClosedHalf: the error says which, nothing is held, and the stages move on.
func TestAClosedHalf(t *testing.T) {
	inTown(t, 15, func(town *town) {
		m := town.joins("m")
		town.reach(lockmigrate.StageBoth)
		require.NoError(t, m.new.Close())
		_, err := m.Acquire(context.Background(), key)
		assert.ErrorContains(t, err, "the Locker is closed")
		time.Sleep(time.Second)
		held, _ := town.a.Value(key)
		assert.Empty(t, held, "Old was given back")
		town.move(lockmigrate.StageNew)
	})
}

// TestCloseBesideCallers: one who waits is told that the Locker is closed, one who releases is told of no loss, and Close waits for nobody else.
func TestCloseBesideCallers(t *testing.T) {
	inTown(t, 16, func(town *town) {
		m, other := town.joins("m"), town.joins("n")
		town.reach(lockmigrate.StageBoth)
		held, err := m.TryAcquire(context.Background(), "lock.mine")
		require.NoError(t, err)
		_, err = other.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		waited, released := redistest.BeginTurn(context.Background(), m.Acquire, key), make(chan error, 1)
		time.Sleep(time.Second)
		m.toB.HalfOpen()
		go func() { released <- held.Release(context.Background()) }()
		time.AfterFunc(100*time.Millisecond, m.toB.Heal)
		time.Sleep(time.Millisecond)
		began := time.Now()
		assert.NoError(t, m.Close())
		assert.Less(t, time.Since(began), time.Second)
		assert.NoError(t, <-released)
		assert.ErrorIs(t, context.Cause(held.Context()), lockmigrate.ErrReleased)
		err = <-waited
		assert.ErrorIs(t, err, lifetime.ErrClosed)
		assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	})
}

// TestAReleaseOutlivesItsContext, also one that had ended before.
func TestAReleaseOutlivesItsContext(t *testing.T) {
	inTown(t, 17, func(town *town) {
		m := town.joins("m")
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for range 20 {
			held, err := m.TryAcquire(context.Background(), key)
			require.NoError(t, err)
			_ = held.Release(ended)
			time.Sleep(100 * time.Millisecond)
			require.ErrorIs(t, context.Cause(held.Context()), lockmigrate.ErrReleased)
		}
	})
}
