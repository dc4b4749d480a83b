package handover_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestALongWaitIsNoLoss: an Acquire that waits for longer than the TTL has its lease begin when it returns; where that cannot be, nothing is held.
func TestALongWaitIsNoLoss(t *testing.T) {
	inTown(t, 10, func(town *town) {
		var given, extended atomic.Int32
		var broken atomic.Bool
		m := town.theirs(true, handover.Funcs[int]{
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
	inTown(t, 11, func(town *town) {
		lost, losses, failing := make(chan struct{}), atomic.Int32{}, true
		m := town.theirs(true, handover.Funcs[int]{
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
		assert.NoError(t, lock.Release(context.Background()), "the first call after it was given back")
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrReleased)
		assert.Zero(t, losses.Load())
	})
}

// TestAHangingLibraryIsTold: an Extend that never returns does not keep the holder from being told.
func TestAHangingLibraryIsTold(t *testing.T) {
	inTown(t, 12, func(town *town) {
		hangs := make(chan struct{})
		m := town.theirs(true, handover.Funcs[int]{
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
		assert.Regexp(t, "one was sent 2s ago, and has had no answer|has not answered", context.Cause(lock.Context()).Error())
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrLost)
		close(hangs)
	})
}

// TestALossHasTheLibrarysWords: an Extend that says ErrLost ends the holder's context with what it said.
func TestALossHasTheLibrarysWords(t *testing.T) {
	inTown(t, 15, func(town *town) {
		m := town.theirs(true, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error { return nil },
			Extend:  func(context.Context, int) error { return fmt.Errorf("%w: another session has it", lockmigrate.ErrLost) },
			TTL:     3 * time.Second,
		})
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		<-lock.Context().Done()
		assert.ErrorContains(t, context.Cause(lock.Context()), "another session has it")
		assert.ErrorIs(t, lock.Release(context.Background()), lockmigrate.ErrLost)
	})
}

// TestRenewOfWhatNobodyExtends: Renew says so of a lock that ends with its TTL, and nothing of one that lasts until its library tells.
func TestRenewOfWhatNobodyExtends(t *testing.T) {
	for ttl, says := range map[time.Duration]string{3 * time.Second: "cannot extend it", 0: ""} {
		m := handover.Wrap("theirs", handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error { return nil },
			TTL:     ttl,
		})
		lock, err := m.Acquire(t.Context(), key)
		require.NoError(t, err)
		if err = lock.Renew(t.Context()); says == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, says)
		}
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, m.Close())
	}
}

// TestAStageChangeCostsOneAttempt: a waiter at Old begins anew once for each stage that comes, and no more often.
func TestAStageChangeCostsOneAttempt(t *testing.T) {
	inTown(t, 13, func(town *town) {
		var attempts atomic.Int32
		m := town.theirs(true, handover.Funcs[int]{
			Acquire: func(ctx context.Context, _ string) (int, error) {
				attempts.Add(1)
				<-ctx.Done()
				return 0, context.Cause(ctx)
			},
			Release: func(context.Context, int) error { return nil },
			TTL:     time.Hour,
		})
		ctx, cancel := context.WithCancel(context.Background())
		waited := redistest.BeginTurn(ctx, m.Acquire, key)
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

// TestAPanicLeavesNothing: a function of Wrap that panics leaves nothing held or counted.
func TestAPanicLeavesNothing(t *testing.T) {
	inTown(t, 9, func(town *town) {
		m := town.theirs(false, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { panic("library") },
			Release: func(context.Context, int) error { return errors.New("never") }, TTL: time.Hour,
		})
		town.reach(lockmigrate.StageBoth)
		assert.PanicsWithValue(t, "library", func() { _, _ = m.TryAcquire(context.Background(), key) })
		time.Sleep(time.Second)
		left, _ := town.a.Value(key)
		assert.Empty(t, left, "Old was given back")
		town.move(lockmigrate.StageOld)
		town.move(lockmigrate.StageBoth)
		town.move(lockmigrate.StageNew)

		var asked atomic.Int32
		l := handover.Wrap("theirs", handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error {
				switch asked.Add(1) {
				case 1:
					panic("library")
				case 2:
					runtime.Goexit()
				}
				return nil
			}, TTL: time.Hour,
		})
		lock, err := l.Acquire(context.Background(), key)
		require.NoError(t, err)
		assert.PanicsWithValue(t, "library", func() { _ = lock.Release(context.Background()) })
		time.Sleep(time.Second)
		assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased, "it was tried again")
		assert.EqualValues(t, 3, asked.Load())
		assert.NoError(t, l.Close())
	})
}

// TestAHalfLostBeforeTheOther: whose Old is lost while it waits for New waits in vain. Acquire begins anew, at once; a New that comes too late all the
// same is given back.
func TestAHalfLostBeforeTheOther(t *testing.T) {
	inTown(t, 18, func(town *town) {
		come, given := make(chan struct{}), atomic.Int32{}
		late := town.theirs(false, handover.Funcs[int]{
			Acquire:    func(ctx context.Context, _ string) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
			TryAcquire: func(context.Context, string) (int, error) { <-come; return 1, nil },
			Release:    func(context.Context, int) error { given.Add(1); return nil },
			TTL:        time.Hour,
		})
		town.reach(lockmigrate.StageBoth)
		ctx, stop := context.WithCancel(context.Background())
		waits, failed := redistest.BeginTurn(ctx, late.Acquire, key), redistest.BeginTurn(ctx, late.TryAcquire, "lock.b")
		time.Sleep(time.Second)
		before, _ := town.a.Value(key)
		town.a.Do("FLUSHALL")
		time.Sleep(4 * time.Second)
		after, _ := town.a.Value(key)
		assert.NotContains(t, []string{"", before}, after, "Old was not acquired anew")
		late.toA.Partition()
		time.Sleep(4 * time.Second)
		close(come)
		err := <-failed
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		assert.ErrorContains(t, err, "a half was lost before all was acquired")
		late.toA.Heal()
		stop()
		assert.Error(t, <-waits)
		time.Sleep(time.Second)
		assert.EqualValues(t, 1, given.Load())
	})
}

// TestAReleaseThatHangs: a library that does not come back from a release, whatever its ctx says, keeps neither the caller nor the stage for longer than
// the lock lasts.
func TestAReleaseThatHangs(t *testing.T) {
	inTown(t, 19, func(town *town) {
		m := town.theirs(true, handover.Funcs[int]{
			Acquire: func(context.Context, string) (int, error) { return 1, nil },
			Release: func(context.Context, int) error { <-town.Context().Done(); return nil },
			TTL:     3 * time.Second,
		})
		lock, err := m.TryAcquire(context.Background(), key)
		require.NoError(t, err)
		began := time.Now()
		assert.Error(t, lock.Release(context.Background()))
		town.move(lockmigrate.StageBoth)
		town.move(lockmigrate.StageNew)
		assert.LessOrEqual(t, time.Since(began), 3*time.Second+lease)
	})
}
