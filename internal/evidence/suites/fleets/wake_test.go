package fleets

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestBridgeWaiterWakesAtAJavaDelete (G8): from the server's execution of an unmodified Java client's
// DEL to the return of Acquire in a waiting Go process, on a server with client tracking. A machine that is busy
// with other suites wakes every process late: what MONITOR says of the same DEL, read beside, tells by how much.
// Acquire is woken once and then waits for the answer to its command, from a server that has to be woken too.
func TestBridgeWaiterWakesAtAJavaDelete(t *testing.T) {
	server := redistest.Real(t)
	java := holders.Start(t, holders.JedisLock, server.URL(), holders.Arg("lease", time.Minute))
	var mode redistest.Mode
	l := locker(t, server, compat.Options{ShortestLease: 10 * time.Second, Observer: mode.Observe})
	deletes := deletesOf(t, server)

	const rounds = 40
	var took, beside []time.Duration
	for range rounds {
		if e := java.Do("acquire orders"); e.Event != "acquired" {
			t.Fatalf("%+v", e)
		}
		type result struct {
			lock lockmigrate.Lock
			err  error
			at   time.Time
		}
		done := make(chan result, 1)
		go func() {
			lock, err := l.Acquire(t.Context(), "orders")
			done <- result{lock, err, time.Now()}
		}()
		for deadline := time.Now().Add(5 * time.Second); mode.Is() != "tracking"; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the waiter is woken by %s", mode.Is())
			}
		}
		// The last look of the waiter before it sleeps; there is no way to be told of its sleep.
		time.Sleep(20 * time.Millisecond)
		java.Send("release orders")
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		var deleted heard
		select {
		case deleted = <-deletes:
		case <-time.After(5 * time.Second):
			t.Fatal("MONITOR does not tell of the DEL")
		}
		took, beside = append(took, r.at.Sub(deleted.executed)), append(beside, deleted.at.Sub(deleted.executed))
		require.NoError(t, r.lock.Release(t.Context()))
		if e := java.Next(5 * time.Second); e.Event != "released" {
			t.Fatalf("%+v", e)
		}
	}
	slices.Sort(took)
	slices.Sort(beside)
	t.Logf("from DEL to the holder's start: median %v, p90 %v, worst %v of %d; to MONITOR's reader: median %v", took[rounds/2], took[rounds*9/10], took[rounds-1], rounds, beside[rounds/2])
	if bound := max(5*time.Millisecond, 3*beside[rounds/2]); took[rounds/2] > bound {
		t.Errorf("the median is %v, above %v", took[rounds/2], bound)
	}
}

// heard is a DEL of a client: when the server executed it, and when a reader of MONITOR had it.
type heard struct{ executed, at time.Time }

// deletesOf tells of each DEL of orders by a client.
func deletesOf(t *testing.T, server *redistest.Server) <-chan heard {
	t.Helper()
	monitor := server.Conn()
	if _, err := monitor.Do("MONITOR"); err != nil {
		t.Fatal(err)
	}
	deletes := make(chan heard, 100)
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			line, err := redis.String(redis.ReceiveWithTimeout(monitor, 0))
			at := time.Now()
			if err != nil {
				return // closed, below
			}
			if strings.Contains(line, " lua] ") || !strings.Contains(line, `"DEL" "orders"`) {
				continue
			}
			if seconds, err := strconv.ParseFloat(strings.Fields(line)[0], 64); err == nil {
				deletes <- heard{time.UnixMicro(int64(seconds * 1e6)), at}
			}
		}
	})
	t.Cleanup(func() {
		_ = monitor.Close()
		reader.Wait()
	})
	return deletes
}
