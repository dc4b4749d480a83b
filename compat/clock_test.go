package compat_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

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
	if err := k.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	now, err := redis.Int64s(s.Do("TIME"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := strconv.ParseInt(s.Value("orders"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.UnixMilli(ends).Sub(time.Unix(now[0], now[1]*1000)); left < lease-step/2 {
		t.Errorf("on the server's clock a lease of %v lasts for another %v", lease, left)
	}
	release(t, k)
}
