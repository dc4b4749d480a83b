package compat_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestRenewalsFollowTheServersClock: a lock of stage Legacy may be held for hours. Its renewals write expiries by the clock that the
// server has then. By an older measurement the value would look expired to others ever earlier, while its holder works.
func TestRenewalsFollowTheServersClock(t *testing.T) {
	const lease, step = 30 * time.Second, 6 * time.Second // less than a member's lease
	s := redistest.NewClocked(t)
	l := compat.MeasureAlways(newLocker(t, s.Server, quick(func(o *compat.Options) { o.TTL, o.Lease = time.Minute, lease }, inStage(t, s.Server, lockmigrate.StageLegacy))))
	k := acquire(t, l, "orders")
	s.Step(step)
	require.NoError(t, k.Renew(t.Context()))
	if left := leftOf(t, s.Server, "orders"); left < lease-step/2 {
		t.Errorf("on the server's clock a lease of %v lasts for another %v", lease, left)
	}
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
		redistest.Await(t, "values by the clock as it is now", 15*time.Second, func() bool {
			k := acquire(t, l, "orders")
			defer release(t, k)
			off := leftOf(t, s.Server, "orders") - lease
			return off.Abs() < step.Abs()/2
		})
	}
}
