package endpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Clocks is this host's clock compared with a server's.
type Clocks struct {
	Ahead time.Duration // this host's clock less the server's
	Trip  time.Duration // the round trip that it was measured by: Ahead is right within half of it
}

// CompareClocks asks the server for its time so many times, and believes the fastest answer: the server read
// its clock within it. Now is this host's clock, nil for the usual one.
func CompareClocks(ctx context.Context, conn redis.Conn, times int, now func() time.Time) (Clocks, error) {
	if now == nil {
		now = time.Now
	}
	var best Clocks
	for i := range max(times, 1) {
		before, began := now(), time.Now()
		parts, err := redis.Int64s(redis.DoContext(conn, ctx, "TIME"))
		trip := time.Since(began)
		if err == nil && len(parts) != 2 {
			err = fmt.Errorf("TIME answers %d numbers", len(parts))
		}
		if err != nil {
			return Clocks{}, err
		}
		if i == 0 || trip < best.Trip {
			best = Clocks{before.Add(trip / 2).Sub(time.Unix(parts[0], parts[1]*1000)), trip}
		}
	}
	return best, nil
}
