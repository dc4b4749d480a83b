package compat_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestAMemberFollowsWhenItsAttemptsDo: an attempt that is under way takes keys over by the record as it was. Until it is over the
// member does not count as one that follows the correction.
func TestAMemberFollowsWhenItsAttemptsDo(t *testing.T) {
	s := redistest.Real(t)
	store := namespace(t, s)
	moveTo(t, store, stages.Bridge)
	t.Cleanup(compat.ShortenMemberLease(3 * time.Second))
	proxy := redistest.NewProxy(t, s)
	l := opened(t, poolTo(t, proxy.Addr), quick(ofOrders, func(o *compat.Options) { o.TTL, o.ClockLag, o.ReplyTimeout = 30*time.Second, 0, 20*time.Second }))
	require.NoError(t, l.Ready(t.Context()))
	held, free := make(chan struct{}, 1), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(free) })
	defer letGo()
	proxy.Before(func(words []string) {
		if slices.Contains(words, "orders:1") {
			select {
			case held <- struct{}{}:
				<-free
			default:
			}
		}
	})
	done := redistest.BeginTurn(context.Background(), l.TryAcquire, "orders:1")
	<-held
	epoch := correct(t, store, func(r *stages.Record) { r.ClockLag = 3 * time.Second })
	follows := func() bool {
		view, err := store.Show(t.Context())
		require.NoError(t, err)
		late, _ := view.ChangingOver()
		return len(late) == 0
	}
	redistest.Await(t, "the member hears of the correction", func() bool {
		_, runs, err := l.Stage()
		return err == nil && runs == epoch
	})
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		require.False(t, follows(), "it follows, and an attempt of the record before is under way")
	}
	letGo()
	if err := <-done; err != nil && !errors.Is(err, lockmigrate.ErrStage) { // that late it is refused
		t.Error(err)
	}
	redistest.Await(t, "the member follows", follows)
}

// TestHeldLocksFollowAShorterLease: a lock that is held is renewed as often as the corrected record wants it.
func TestHeldLocksFollowAShorterLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		store := namespace(t, s)
		moveTo(t, store, stages.Bridge)
		correct(t, store, shortest(3*time.Minute))
		t.Cleanup(compat.ShortenMemberLease(time.Second))
		l := newLocker(t, s, quick(ofOrders, func(o *compat.Options) { o.TTL, o.Lease, o.ShortestLease = 3*time.Minute, 3*time.Minute, 0 }))
		k := acquire(t, l, "orders:1")
		before := k.Expiry()
		epoch := correct(t, store, shortest(time.Second))
		redistest.Await(t, "the member hears of the correction", func() bool {
			_, runs, err := l.Stage()
			return err == nil && runs == epoch
		})
		redistest.Await(t, "a renewal, which was a minute away", func() bool { return k.Expiry().After(before) })
		after := k.Expiry()
		redistest.Await(t, "the next one", func() bool { return k.Expiry().After(after) })
		release(t, k)
	})
}

// TestRenewalsFollowTheServersClock: a lock of stage Legacy may be held for hours. Its renewals write expiries by the clock that the
// server has then. By an older measurement the value would look expired to others ever earlier, while its holder works.
func TestRenewalsFollowTheServersClock(t *testing.T) {
	const lease, step = 30 * time.Second, 6 * time.Second // less than a member's lease
	s := redistest.NewClocked(t)
	l := compat.MeasureAlways(newLocker(t, s.Server, quick(func(o *compat.Options) { o.TTL, o.Lease = time.Minute, lease }, inStage(t, s.Server, lockmigrate.StageLegacy))))
	k := acquire(t, l, "orders")
	s.Step(step)
	require.NoError(t, k.Renew(t.Context()))
	assert.GreaterOrEqual(t, leftOf(t, s.Server, "orders"), lease-step/2, "on the server's clock a lease of %v lasts for another", lease)
	release(t, k)
}

// leftOf is for how long a legacy value is live on the server's clock.
func leftOf(t testing.TB, s *redistest.Server, key string) time.Duration {
	t.Helper()
	now, err := redis.Int64s(s.Do("TIME"), nil)
	require.NoError(t, err)
	ends, err := strconv.ParseInt(s.Value(key), 10, 64)
	require.NoError(t, err)
	return time.UnixMilli(ends).Sub(time.Unix(now[0], now[1]*1000))
}

// TestReportsTellThatTheServersClockWasSet: a member reports to its namespace several times in a lease, and each answer tells the
// server's time. So what it writes at stage Legacy follows a step of that clock at once, and not with the next measurement.
func TestReportsTellThatTheServersClockWasSet(t *testing.T) {
	for _, step := range []time.Duration{6 * time.Second, -6 * time.Second} {
		const lease = 30 * time.Second
		s := redistest.NewClocked(t)
		l := newLocker(t, s.Server, quick(func(o *compat.Options) { o.Lease = lease }, inStage(t, s.Server, lockmigrate.StageLegacy)))
		release(t, acquire(t, l, "orders")) // it has measured
		s.Step(step)
		redistest.Await(t, "values by the clock as it is now", func() bool {
			k := acquire(t, l, "orders")
			defer release(t, k)
			off := leftOf(t, s.Server, "orders") - lease
			return off.Abs() < step.Abs()/2
		})
	}
}

// Who waits for the namespace is told of Close too.
func TestCloseEndsTheWaitForANamespace(t *testing.T) {
	s := redistest.Mini(t)
	pool := poolTo(t, s.Addr)
	s.Mini.Close()
	l := opened(t, pool, quick(ofOrders))
	ended := make(chan error, 2)
	go func() {
		_, err := l.Acquire(context.Background(), "lock.order.1")
		ended <- err
	}()
	go func() { ended <- l.Ready(context.Background()) }()
	time.Sleep(200 * time.Millisecond) // the subject
	l.Close()
	closed(t, ended)
	closed(t, ended)
}

// closed expects the error of a closed Locker, soon.
func closed(t testing.TB, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, lifetime.ErrClosed)
		assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on after Close")
	}
}
