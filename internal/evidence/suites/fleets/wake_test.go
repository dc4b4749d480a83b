package fleets

import (
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestBridgeWaiterWakesAtAJavaDelete (G8): from the server's execution of an unmodified Java client's
// DEL to the return of Acquire in a waiting Go process, on a server with client tracking.
func TestBridgeWaiterWakesAtAJavaDelete(t *testing.T) {
	server := redistest.Real(t)
	java := holders.Start(t, holders.JedisLock, server.URL(), holders.Arg("lease", time.Minute))
	l := locker(t, server, compat.Options{ShortestLease: 10 * time.Second})
	monitor := server.Conn()
	if _, err := monitor.Do("MONITOR"); err != nil {
		t.Fatal(err)
	}

	const rounds = 40
	var took []time.Duration
	for range rounds {
		if e := java.Do("acquire orders"); e.Event != "acquired" {
			t.Fatalf("%+v", e)
		}
		type result struct {
			lock *compat.Lock
			err  error
			at   time.Time
		}
		done := make(chan result, 1)
		go func() {
			lock, err := l.Acquire(t.Context(), "orders")
			done <- result{lock, err, time.Now()}
		}()
		for deadline := time.Now().Add(5 * time.Second); l.Waiting() != lockmigrate.ModeTracking; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the waiter is woken by %s", l.Waiting())
			}
		}
		// The last look of the waiter before it sleeps; there is no way to be told of its sleep.
		time.Sleep(20 * time.Millisecond)
		java.Send("release orders")
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		took = append(took, r.at.Sub(deleted(t, monitor)))
		if err := r.lock.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := java.Next(5 * time.Second); e.Event != "released" {
			t.Fatalf("%+v", e)
		}
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	t.Logf("from DEL to the holder's start: median %v, p90 %v, worst %v of %d", took[rounds/2], took[rounds*9/10], took[rounds-1], rounds)
	if took[rounds/2] > 5*time.Millisecond {
		t.Errorf("the median is %v, above 5ms", took[rounds/2])
	}
}

// deleted reads on to the next DEL of a client and returns when the server executed it.
func deleted(t *testing.T, monitor redis.Conn) time.Time {
	t.Helper()
	for {
		line, err := redis.String(redis.ReceiveWithTimeout(monitor, 5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, " lua] ") || !strings.Contains(line, `"DEL" "orders"`) {
			continue
		}
		seconds, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.UnixMicro(int64(seconds * 1e6))
	}
}
