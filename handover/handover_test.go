package handover_test

import (
	"context"
	"errors"
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
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

const key = "lock.order.17"

// town is two servers, and the record of a handover on the second.
type town struct {
	*world.World
	a, b  *world.Server
	store *stages.Store
}

func newTown(w *world.World) *town {
	t := &town{World: w, a: w.Server(), b: w.Server()}
	t.store = &stages.Store{Pool: t.b.Pool(), Namespace: "to-b", ReplyTimeout: 5 * time.Second, By: "test"}
	old, err := stages.WriteMark(context.Background(), t.a.Pool(), "to-b", time.Second)
	require.NoError(w, err)
	new, err := stages.WriteMark(context.Background(), t.b.Pool(), "to-b", time.Second)
	require.NoError(w, err)
	require.NotEqual(w, old, new)
	require.NoError(w, t.store.Init(context.Background(), stages.Record{Patterns: []string{"lock.*"}, Handover: &stages.Halves{Old: stages.Half{Mark: old}, New: stages.Half{Mark: new}}}))
	return t
}

// member is a process with both halves and a Locker over them.
type member struct {
	handover.Locker
	old, new          lockmigrate.Locker
	toA, toB, toClerk *world.Route // clerk: the record's server
}

const lease = 6 * time.Second

func (t *town) member(name string, change ...func(*handover.Options)) *member {
	p := t.Process(name)
	m := &member{toA: p.Route(t.a), toB: p.Route(t.b), toClerk: p.Route(t.b)}
	var err error
	m.old, err = compat.New(m.toA.Pool(), compat.Options{TTL: 3 * time.Second, FenceTTL: time.Hour})
	require.NoError(t, err)
	m.new, err = modern.New(m.toB.Pool(), modern.Options{TTL: 3 * time.Second, FenceTTL: time.Hour})
	require.NoError(t, err)
	o := handover.Options{Namespace: "to-b", Old: m.old, New: m.new, Lease: lease, Member: name}
	for _, f := range change {
		f(&o)
	}
	m.Locker, err = handover.New(m.toClerk.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = m.Close()
		_, _ = m.old.Close(), m.new.Close()
	})
	return m
}

// move makes a step as soon as nobody is in the way.
func (t *town) move(to lockmigrate.Stage) {
	t.Helper()
	for {
		view, err := t.store.Show(context.Background())
		require.NoError(t, err)
		blockers, err := t.store.Move(context.Background(), view.Record.Epoch, to, true)
		require.NoError(t, err)
		if len(blockers) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func ready(t *town, members ...*member) {
	t.Helper()
	for _, m := range members {
		require.NoError(t, m.Ready(context.Background()))
	}
}

// referee counts who is inside. It looks at no lock.
type referee struct {
	mu       sync.Mutex
	inside   int
	overlaps int
	turns    int
	fence    int64
	back     int // fencing tokens that did not grow
}

func (r *referee) enter(fence int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turns++
	if r.inside++; r.inside > 1 {
		r.overlaps++
	}
	if fence <= r.fence {
		r.back++
	}
	r.fence = max(r.fence, fence)
}

func (r *referee) taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns
}

func (r *referee) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside--
}

// work takes turns until ctx ends. A turn ends with its context, or after its hold.
func (r *referee) work(ctx context.Context, m *member, hold time.Duration) {
	for ctx.Err() == nil {
		lock, err := m.Acquire(ctx, key)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		r.enter(lock.Fence())
		select {
		case <-lock.Context().Done():
		case <-time.After(hold):
		}
		r.leave()
		_ = lock.Release(context.Background())
	}
}

// TestStagesForthAndBack: a fleet works while its stages move forth and back, with members that are cut off from the record, from Old and from New,
// and the servers' clocks an hour apart. Nobody is inside beside another, and at stages old and both fencing tokens grow.
func TestStagesForthAndBack(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			world.Run(t, seed, func(w *world.World) {
				town := newTown(w)
				town.a.Offset, town.b.Offset = time.Duration(w.Rand.IntN(3)-1)*time.Hour, 0
				var members []*member
				for i := range 4 {
					members = append(members, town.member(fmt.Sprint("m", i)))
				}
				ready(town, members...)
				var r referee
				ctx, stop := context.WithCancel(context.Background())
				var work sync.WaitGroup
				for _, m := range members {
					work.Go(func() { r.work(ctx, m, 120*time.Millisecond) })
				}
				var counts [3]int
				faults := func() {
					m := members[w.Rand.IntN(len(members))]
					route := []*world.Route{m.toA, m.toB, m.toClerk}[w.Rand.IntN(3)]
					[]func(){route.Partition, route.HalfOpen, route.Cut}[w.Rand.IntN(3)]()
					time.Sleep(time.Duration(w.Rand.IntN(12_000)) * time.Millisecond)
					route.Heal()
				}
				for _, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageNew, lockmigrate.StageBoth, lockmigrate.StageOld, lockmigrate.StageBoth, lockmigrate.StageNew} {
					before := r.taken()
					time.Sleep(2 * time.Second)
					faults()
					town.move(to)
					view, _ := town.store.Show(ctx)
					counts[stages.Number(view.Record.Stage)] += r.taken() - before
				}
				time.Sleep(5 * time.Second)
				stop()
				work.Wait()
				assert.Zero(t, r.overlaps, "EXCLUSION VIOLATED")
				assert.Greater(t, r.turns, 60)
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
	world.Run(t, 1, func(w *world.World) {
		town := newTown(w)
		town.a.Offset = time.Hour
		m := town.member("m")
		ready(town, m)
		last := int64(0)
		for _, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageNew} {
			for range 2 {
				lock, err := m.TryAcquire(context.Background(), key)
				require.NoError(t, err)
				assert.Greater(t, lock.Fence(), last)
				last = lock.Fence()
				require.NoError(t, lock.Release(context.Background()))
			}
			town.move(to)
			time.Sleep(lease)
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
	world.Run(t, 2, func(w *world.World) {
		town := newTown(w)
		m := town.member("m")
		ready(town, m)
		town.move(lockmigrate.StageBoth)
		time.Sleep(lease)
		other, err := modern.New(town.b.Pool(), modern.Options{TTL: time.Minute})
		require.NoError(t, err)
		w.Cleanup(func() { _ = other.Close() })
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
		moved := make(chan bool)
		go func() {
			town.move(lockmigrate.StageNew)
			close(moved)
		}()
		<-moved
		time.Sleep(lease)
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
			world.Run(t, 3, func(w *world.World) {
				town := newTown(w)
				m := town.member("m")
				ready(town, m)
				town.move(lockmigrate.StageBoth)
				time.Sleep(lease)
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
	world.Run(t, 4, func(w *world.World) {
		town := newTown(w)
		m := town.member("m")
		ready(town, m)
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

// TestNothingAfterTheLease: a half that comes after the member's lease is given back, and the caller gets ErrStage.
func TestNothingAfterTheLease(t *testing.T) {
	world.Run(t, 5, func(w *world.World) {
		town := newTown(w)
		gate := make(chan struct{})
		var given atomic.Int32
		slow := handover.Wrap("slow", handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { <-gate; return 1, nil },
			Release: func(context.Context, int) error { given.Add(1); return nil },
			TTL:     time.Hour,
		})
		w.Cleanup(func() { _ = slow.Close() })
		record, err := town.store.Show(context.Background())
		require.NoError(t, err)
		to := record.Record
		to.Handover = &stages.Halves{Old: stages.Half{Name: "slow"}, New: to.Handover.New}
		_, err = town.store.Set(context.Background(), to.Epoch, record.Record, to, true)
		require.NoError(t, err)
		m := town.member("m", func(o *handover.Options) { o.Old = slow })
		ready(town, m)
		failed := make(chan error)
		go func() {
			_, err := m.Acquire(context.Background(), key)
			failed <- err
		}()
		time.Sleep(time.Second)
		m.toClerk.Partition()
		time.Sleep(2 * lease)
		close(gate)
		err = <-failed
		assert.ErrorIs(t, err, lockmigrate.ErrStage)
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, given.Load())
		m.toClerk.Heal()
	})
}

// slowNew makes New a lock whose acquisition lasts until gate is closed, whatever becomes of its context.
func (t *town) slowNew(gate <-chan struct{}) func(*handover.Options) {
	slow := handover.Wrap("slow", handover.Funcs[int]{
		Acquire: func(context.Context, string) (int, error) { <-gate; return 1, nil },
		Release: func(context.Context, int) error { return nil },
		TTL:     time.Hour,
	})
	t.Cleanup(func() { _ = slow.Close() })
	view, err := t.store.Show(context.Background())
	require.NoError(t, err)
	to := view.Record
	to.Handover = &stages.Halves{Old: to.Handover.Old, New: stages.Half{Name: "slow"}}
	_, err = t.store.Set(context.Background(), to.Epoch, view.Record, to, true)
	require.NoError(t, err)
	return func(o *handover.Options) { o.New = slow }
}

// TestAnAttemptUnderWayIsInTheWay: an attempt of stage new that has not come back yet may hold New, so the stage does not go back to old beside it.
func TestAnAttemptUnderWayIsInTheWay(t *testing.T) {
	world.Run(t, 10, func(w *world.World) {
		town := newTown(w)
		gate := make(chan struct{})
		m := town.member("m", town.slowNew(gate))
		ready(town, m)
		town.move(lockmigrate.StageBoth)
		time.Sleep(lease)
		town.move(lockmigrate.StageNew)
		time.Sleep(lease)
		ctx, cancel := context.WithCancel(context.Background())
		left := make(chan error)
		go func() {
			_, err := m.Acquire(ctx, key)
			left <- err
		}()
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
	world.Run(t, 11, func(w *world.World) {
		town := newTown(w)
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
	world.Run(t, 6, func(w *world.World) {
		town := newTown(w)
		elsewhere := w.Server()
		stranger, err := modern.New(elsewhere.Pool(), modern.Options{})
		require.NoError(t, err)
		w.Cleanup(func() { _ = stranger.Close() })
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
		_, err = stages.WriteMark(context.Background(), elsewhere.Pool(), "to-b", time.Second)
		require.NoError(t, err)
	})
}

// TestOneOrder: two members at stage both that want one key never wait for each other.
func TestOneOrder(t *testing.T) {
	world.Run(t, 7, func(w *world.World) {
		town := newTown(w)
		a, b := town.member("a"), town.member("b")
		ready(town, a, b)
		town.move(lockmigrate.StageBoth)
		time.Sleep(lease)
		var r referee
		ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
		defer stop()
		var work sync.WaitGroup
		for _, m := range []*member{a, b, a, b} {
			work.Go(func() { r.work(ctx, m, time.Millisecond) })
		}
		work.Wait()
		assert.Zero(t, r.overlaps, "EXCLUSION VIOLATED")
		assert.Zero(t, r.back)
		assert.Greater(t, r.turns, 100)
	})
}

// TestBadInput: each is a clear error, and nothing is held.
func TestBadInput(t *testing.T) {
	world.Run(t, 8, func(w *world.World) {
		town := newTown(w)
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

		other := &stages.Store{Pool: town.b.Pool(), Namespace: "orders", ReplyTimeout: time.Second}
		require.NoError(t, other.Init(context.Background(), stages.Record{Patterns: []string{"order.*"}, Dialect: "jedis-ms", Shortest: 10 * time.Second}))
		wrong := town.member("wrong", func(o *handover.Options) { o.Namespace = "orders" })
		assert.ErrorContains(t, wrong.Ready(context.Background()), "package compat follows it")
		bridge, err := compat.New(town.b.Pool(), compat.Options{Namespace: "to-b"})
		require.NoError(t, err)
		w.Cleanup(func() { _ = bridge.Close() })
		assert.ErrorContains(t, bridge.Ready(context.Background()), "package handover")

		held, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		assert.ErrorContains(t, m.Close(), "locks held: 1")
		assert.ErrorIs(t, context.Cause(held.Context()), lockmigrate.ErrLost)
		_, err = m.Acquire(context.Background(), key)
		assert.ErrorContains(t, err, "closed")
	})
}

// TestAPanicLeavesNothing: a function of Wrap that panics leaves nothing held or counted.
func TestAPanicLeavesNothing(t *testing.T) {
	world.Run(t, 9, func(w *world.World) {
		town := newTown(w)
		panics := handover.Wrap("slow", handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { panic("library") },
			Release: func(context.Context, int) error { return errors.New("never") }, TTL: time.Hour,
		})
		w.Cleanup(func() { _ = panics.Close() })
		view, err := town.store.Show(context.Background())
		require.NoError(t, err)
		to := view.Record
		to.Handover = &stages.Halves{Old: to.Handover.Old, New: stages.Half{Name: "slow"}}
		_, err = town.store.Set(context.Background(), to.Epoch, view.Record, to, true)
		require.NoError(t, err)
		m := town.member("m", func(o *handover.Options) { o.New = panics })
		ready(town, m)
		town.move(lockmigrate.StageBoth)
		time.Sleep(lease)
		assert.PanicsWithValue(t, "library", func() { _, _ = m.TryAcquire(context.Background(), key) })
		time.Sleep(time.Second)
		left, _ := town.a.Value(key)
		assert.Empty(t, left, "Old was given back")
		town.move(lockmigrate.StageOld)
		town.move(lockmigrate.StageBoth)
		town.move(lockmigrate.StageNew)
	})
}

// wrapping is a town whose half Old is a lock of another library.
func wrapping(w *world.World, f handover.Funcs[int], change ...func(*handover.Options)) (*town, *member) {
	town := newTown(w)
	view, err := town.store.Show(context.Background())
	require.NoError(w, err)
	to := view.Record
	to.Handover = &stages.Halves{Old: stages.Half{Name: "theirs"}, New: to.Handover.New}
	_, err = town.store.Set(context.Background(), to.Epoch, view.Record, to, true)
	require.NoError(w, err)
	old := handover.Wrap("theirs", f)
	m := town.member("m", append(change, func(o *handover.Options) { o.Old = old })...)
	w.Cleanup(func() { _ = m.Close(); _ = old.Close() })
	ready(town, m)
	return town, m
}

// TestALongWaitIsNoLoss: an Acquire that waits for longer than the TTL has its lease begin when it returns; where that cannot be, nothing is held.
func TestALongWaitIsNoLoss(t *testing.T) {
	world.Run(t, 10, func(w *world.World) {
		var given, extended atomic.Int32
		var broken atomic.Bool
		_, m := wrapping(w, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { time.Sleep(time.Minute); return 1, nil },
			Release: func(context.Context, int) error { given.Add(1); return nil },
			Extend: func(context.Context, int) error {
				extended.Add(1)
				if broken.Load() {
					return errors.New("no such server")
				}
				return nil
			},
			TTL: 3 * time.Second,
		})
		lock, err := m.Acquire(context.Background(), key)
		require.NoError(t, err)
		assert.EqualValues(t, 1, extended.Load(), "before it was handed out")
		assert.Greater(t, time.Until(lock.Expiry()), 2*time.Second)
		time.Sleep(10 * time.Second)
		require.NoError(t, lock.Context().Err())
		require.NoError(t, lock.Release(context.Background()))
		broken.Store(true)
		_, err = m.Acquire(context.Background(), key)
		assert.ErrorContains(t, err, "no such server")
		assert.EqualValues(t, 2, given.Load(), "given back")
	})
}

// TestAReleaseIsNoLoss: a library that closes its channel of losses on a release too, and one that cannot release at once and never says until when it
// holds. No loss is told, and the stage moves as soon as the lock is given back.
func TestAReleaseIsNoLoss(t *testing.T) {
	world.Run(t, 11, func(w *world.World) {
		lost, losses, failing := make(chan struct{}), atomic.Int32{}, true
		town, m := wrapping(w, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error {
				if failing {
					failing = false
					return errors.New("try later")
				}
				close(lost)
				time.Sleep(time.Second)
				return nil
			},
			Lost: func(int) <-chan struct{} { return lost },
		}, func(o *handover.Options) {
			o.Observer = func(e lockmigrate.Event) {
				if e.Kind == lockmigrate.EventLost {
					losses.Add(1)
				}
			}
		})
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		assert.ErrorContains(t, lock.Release(context.Background()), "try later")
		time.Sleep(2 * time.Second)
		town.move(lockmigrate.StageBoth)
		town.move(lockmigrate.StageNew)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased)
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrReleased)
		assert.Zero(t, losses.Load())
	})
}

// TestAHangingLibraryIsTold: an Extend that never returns does not keep the holder from being told.
func TestAHangingLibraryIsTold(t *testing.T) {
	world.Run(t, 12, func(w *world.World) {
		hangs := make(chan struct{})
		_, m := wrapping(w, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error { return nil },
			Extend:  func(context.Context, int) error { <-hangs; return nil },
			TTL:     3 * time.Second,
		})
		began := time.Now()
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		<-lock.Context().Done()
		assert.Equal(t, 3*time.Second, time.Since(began))
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrLost)
		close(hangs)
	})
}

// TestAStageChangeCostsOneAttempt: a waiter at Old begins anew once for each stage that comes, and no more often.
func TestAStageChangeCostsOneAttempt(t *testing.T) {
	world.Run(t, 13, func(w *world.World) {
		var attempts atomic.Int32
		town, m := wrapping(w, handover.Funcs[int]{
			Acquire: func(ctx context.Context, _ string) (int, error) {
				attempts.Add(1)
				<-ctx.Done()
				return 0, context.Cause(ctx)
			},
			Release: func(context.Context, int) error { return nil },
			TTL:     time.Hour,
		})
		ctx, cancel := context.WithCancel(context.Background())
		waited := make(chan error)
		go func() {
			_, err := m.Acquire(ctx, key)
			waited <- err
		}()
		time.Sleep(2 * lease)
		assert.EqualValues(t, 1, attempts.Load())
		for n, to := range []lockmigrate.Stage{lockmigrate.StageBoth, lockmigrate.StageOld, lockmigrate.StageBoth} {
			town.move(to)
			time.Sleep(2 * lease)
			assert.EqualValues(t, n+2, attempts.Load(), "after the move to %v", to)
		}
		cancel()
		assert.ErrorIs(t, <-waited, lockmigrate.ErrNotAcquired)
	})
}

// TestOneLockForBothHalves: two Lockers of one key on one server are one lock, which would wait for itself. The marks tell.
func TestOneLockForBothHalves(t *testing.T) {
	world.Run(t, 14, func(w *world.World) {
		town := newTown(w)
		twin, err := modern.New(town.b.Pool(), modern.Options{})
		require.NoError(t, err)
		w.Cleanup(func() { _ = twin.Close() })
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
	world.Run(t, 15, func(w *world.World) {
		town := newTown(w)
		m := town.member("m")
		ready(town, m)
		town.move(lockmigrate.StageBoth)
		time.Sleep(lease)
		require.NoError(t, m.new.Close())
		_, err := m.Acquire(context.Background(), key)
		assert.ErrorContains(t, err, "the Locker is closed")
		time.Sleep(time.Second)
		held, _ := town.a.Value(key)
		assert.Empty(t, held, "Old was given back")
		town.move(lockmigrate.StageNew)
	})
}
