package fleets

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestBridgeWaiterWakesAtAJavaDelete (G8): from the server's execution of an unmodified Java client's DEL to the return of Acquire
// in a waiting Go process, on a server with client tracking. A machine that is busy with other suites wakes every process late.
func TestBridgeWaiterWakesAtAJavaDelete(t *testing.T) {
	server := redistest.Real(t)
	java := holders.Start(t, holders.JedisLock, server.URL(), holders.Arg("lease", time.Minute))
	var mode redistest.Mode
	l := locker(t, server, compat.Options{ShortestLease: 10 * time.Second, Observer: mode.Observe})
	monitor, late := server.Monitor(), redistest.NewLateness(t)
	var took []time.Duration
	const rounds = 40
	for range rounds {
		require.Equal(t, "acquired", java.Do("acquire orders").Event)
		var lock lockmigrate.Lock
		var at time.Time
		done := make(chan error, 1)
		go func() {
			var err error
			lock, err = l.Acquire(t.Context(), "orders")
			at = time.Now()
			done <- err
		}()
		redistest.Await(t, "a waiter that tracks the key", 5*time.Second, func() bool { return mode.Is() == "tracking" })
		// The last look of the waiter before it sleeps; there is no way to be told of its sleep.
		time.Sleep(20 * time.Millisecond)
		require.Equal(t, "released", java.Do("release orders").Event)
		require.NoError(t, <-done)
		commands := monitor.Commands()
		deleted := slices.IndexFunc(commands, func(c redistest.Command) bool { return c.Words[0] == "DEL" && c.Words[1] == "orders" })
		require.GreaterOrEqual(t, deleted, 0, "MONITOR does not tell of the DEL")
		took = append(took, at.Sub(commands[deleted].At))
		require.NoError(t, lock.Release(t.Context()))
	}
	slices.Sort(took)
	t.Logf("from DEL to the holder's start: median %v, p90 %v, worst %v of %d", took[rounds/2], took[rounds*9/10], took[rounds-1], rounds)
	assert.LessOrEqual(t, took[rounds/2], 5*time.Millisecond+late.Most(), "the median")
}
