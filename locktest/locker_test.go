package locktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/locktest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

const key = "order.17"

// TestAsTheRealOnes: what a service sees of this Locker and of those of every package is the same: kinds of errors, causes of contexts,
// fencing tokens. What the real ones write on the key is gone with the release.
func TestAsTheRealOnes(t *testing.T) {
	server := redistest.Mini(t)
	pool, fenced := server.Pool(), 2*locktest.TTL
	lockers := map[string]struct {
		stage lockmigrate.Stage
		fence bool
		open  func() (lockmigrate.Locker, error)
	}{
		"locktest": {lockmigrate.StageModern, true, func() (lockmigrate.Locker, error) { return locktest.New(), nil }},
		"legacy":   {lockmigrate.StageLegacy, false, func() (lockmigrate.Locker, error) { return legacy.New(pool, legacy.Options{}) }},
		"modern":   {lockmigrate.StageModern, true, func() (lockmigrate.Locker, error) { return modern.New(pool, modern.Options{FenceTTL: fenced}) }},
		"unfair":   {lockmigrate.StageModern, false, func() (lockmigrate.Locker, error) { return modern.New(pool, modern.Options{Unfair: true}) }},
		"redisson": {lockmigrate.StageModern, false, func() (lockmigrate.Locker, error) { return redisson.New(pool, modern.Options{}) }},
		"quorum": {lockmigrate.StageModern, false, func() (lockmigrate.Locker, error) {
			return quorum.New([]lockmigrate.Pool{pool}, modern.Options{})
		}},
		"bridge": {lockmigrate.StageBridge, true, func() (lockmigrate.Locker, error) { return compat.New(pool, compat.Options{FenceTTL: fenced}) }},
	}
	type named string
	over, cancel := context.WithCancelCause(context.Background())
	why := errors.New("the request is gone")
	cancel(why)
	for name, kind := range lockers {
		t.Run(name, func(t *testing.T) {
			server.Do("FLUSHALL")
			locker, err := kind.open()
			require.NoError(t, err)
			ctx := context.WithValue(t.Context(), named("trace"), "42")

			lock, err := locker.TryAcquire(ctx, key)
			require.NoError(t, err)
			assert.Equal(t, key, lock.Key())
			assert.NotEmpty(t, lock.Token())
			assert.Equal(t, kind.stage, lock.Stage())
			assert.Equal(t, name != "locktest", server.Mini.Exists(key))
			if name != "locktest" && name != "redisson" { // its token is a field
				assert.Equal(t, lock.Token(), server.Value(key))
			}
			assert.Equal(t, "42", lock.Context().Value(named("trace")))
			require.NoError(t, lock.Renew(ctx))
			assert.NoError(t, lock.Context().Err())

			_, err = locker.TryAcquire(ctx, key)
			assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
			_, err = locker.Acquire(over, key)
			assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
			assert.ErrorIs(t, err, why)
			waiting, give := context.WithCancelCause(ctx)
			go give(why)
			_, err = locker.Acquire(waiting, key)
			assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
			assert.ErrorIs(t, err, why)
			_, err = locker.TryAcquire(ctx, "")
			assert.ErrorContains(t, err, "the key is empty")

			require.NoError(t, lock.Release(ctx))
			redistest.Await(t, "the key is free, and not the waiter's that has left", func() bool { return !server.Mini.Exists(key) })
			assert.ErrorIs(t, context.Cause(lock.Context()), lockmigrate.ErrReleased)
			assert.ErrorIs(t, lock.Renew(ctx), lockmigrate.ErrReleased)
			assert.ErrorIs(t, lock.Release(ctx), lockmigrate.ErrReleased)

			failed := errors.New("work failed")
			assert.Equal(t, failed, locker.Do(ctx, key, func(context.Context) error { return failed }))
			assert.PanicsWithValue(t, "work", func() { _ = locker.Do(ctx, key, func(context.Context) error { panic("work") }) })
			later, err := locker.Acquire(ctx, key)
			require.NoError(t, err, "a panic gives the lock back")
			assert.Equal(t, kind.fence, later.Fence() > lock.Fence())

			left := locker.Close()
			assert.ErrorContains(t, left, "closed with locks held: 1")
			<-later.Context().Done()
			var lost *lockmigrate.Error
			require.ErrorAs(t, context.Cause(later.Context()), &lost)
			assert.ErrorIs(t, lost, lockmigrate.ErrLost)
			assert.Equal(t, lockmigrate.ReasonClosed, lost.Reason)
			_, err = locker.Acquire(ctx, key)
			assert.ErrorContains(t, err, "closed")
			assert.Equal(t, left, locker.Close())
		})
	}
}

// TestOneAfterTheOther: waiters get the key in the order in which they asked, and only when it is free.
func TestOneAfterTheOther(t *testing.T) {
	locker, ctx := locktest.New(), t.Context()
	release := locker.Hold(key)
	turns := make(chan int)
	for i := range 3 {
		go func() {
			_ = locker.Do(ctx, key, func(context.Context) error {
				turns <- i
				return nil
			})
		}()
		require.NoError(t, locker.AwaitWaiters(ctx, key, i+1))
	}
	assert.Empty(t, locker.Held())
	release()
	release()
	for i := range 3 {
		assert.Equal(t, i, <-turns)
	}
}

// TestWhatATestProvokes: a loss is told with its reason, a refusal ends attempts and waits, a release that failed leaves the lock held.
func TestWhatATestProvokes(t *testing.T) {
	locker, ctx := locktest.New(), t.Context()
	done := make(chan error)
	go func() {
		done <- locker.Do(ctx, key, func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	held, err := locker.AwaitHolder(ctx, key)
	require.NoError(t, err)
	assert.Equal(t, []string{key}, locker.Held())
	require.True(t, locker.Lose(key, lockmigrate.ReasonDeadline))
	var lost *lockmigrate.Error
	require.ErrorAs(t, <-done, &lost)
	assert.Equal(t, lockmigrate.ReasonDeadline, lost.Reason)
	assert.ErrorIs(t, held.Renew(ctx), lockmigrate.ErrLost)
	assert.ErrorIs(t, held.Release(ctx), lockmigrate.ErrLost)
	assert.False(t, locker.Lose(key, lockmigrate.ReasonDeadline), "nobody holds it")

	release := locker.Hold(key)
	go func() {
		_, err := locker.Acquire(ctx, key)
		done <- err
	}()
	require.NoError(t, locker.AwaitWaiters(ctx, key, 1))
	locker.Refuse(key, lockmigrate.ErrStage)
	assert.ErrorIs(t, <-done, lockmigrate.ErrStage)
	_, err = locker.TryAcquire(ctx, key)
	assert.ErrorIs(t, err, lockmigrate.ErrStage)
	locker.Refuse(key, nil)
	release()

	mine, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	locker.FailReleases(key, lockmigrate.ErrUnknownOutcome)
	assert.ErrorIs(t, mine.Release(ctx), lockmigrate.ErrUnknownOutcome)
	assert.NoError(t, mine.Context().Err())
	locker.FailReleases(key, nil)
	require.NoError(t, mine.Release(ctx))

	mine, err = locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	defer locker.Hold(key)()
	require.ErrorAs(t, context.Cause(mine.Context()), &lost)
	assert.Equal(t, lockmigrate.ReasonTaken, lost.Reason)

	over, cancel := context.WithCancel(ctx)
	cancel()
	assert.ErrorIs(t, locker.AwaitWaiters(over, key, 1), context.Canceled)
}
