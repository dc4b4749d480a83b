package fleets

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// share is what one kind of members got of a key.
type share struct {
	turns int
	waits []float64 // milliseconds
}

func (s share) percentile(p float64) time.Duration {
	if len(s.waits) == 0 {
		return 0
	}
	slices.Sort(s.waits)
	return time.Duration(s.waits[int(p*float64(len(s.waits)-1))] * float64(time.Millisecond)).Round(10 * time.Millisecond)
}

// TestWhatTheBridgeCosts lets two unmodified jedis-lock clients and two Go members share one key, each turn 100 ms
// long with pauses between, and prints what the old clients get when Go is at stage legacy, at the bridge, and at the bridge without
// gaps. The table of docs/runbook.md is its output with LOCKMIGRATE_COST=20s.
func TestWhatTheBridgeCosts(t *testing.T) {
	t.Parallel()
	window, pauses := 5*time.Second, []time.Duration{20 * time.Millisecond}
	if text := os.Getenv("LOCKMIGRATE_COST"); text != "" {
		var err error
		window, err = time.ParseDuration(text)
		require.NoError(t, err)
		pauses = append(pauses, 200*time.Millisecond)
	}
	server := redistest.Real(t)
	var table strings.Builder
	fmt.Fprintf(&table, "%-44s %10s %10s %10s %10s\n", "2 jedis-lock and 2 Go, "+window.String(), "old turns", "p50 wait", "p95 wait", "Go turns")
	got := map[string]share{}
	var playing sync.WaitGroup
	var mu sync.Mutex
	for _, pause := range pauses {
		for _, c := range []struct {
			name string
			args []string
		}{
			{"legacy", []string{"stage=legacy"}},
			{"bridge", nil},
			{"bridge, Yield -1", []string{"yield=-1"}},
		} {
			key := "lock.cost." + strings.Join(c.args, "") + pause.String()
			playing.Go(func() { // one beside the other: they sleep, most of the time
				old, young := play(t, server, key, window, pause, c.args)
				mu.Lock()
				defer mu.Unlock()
				name := fmt.Sprintf("%s, pauses of %v", c.name, pause)
				got[name] = old
				fmt.Fprintf(&table, "%-44s %10d %10v %10v %10d\n", name, old.turns, old.percentile(.5), old.percentile(.95), young.turns)
				if !strings.Contains(name, "-1") {
					assert.Positive(t, old.turns, name)
				}
				assert.Positive(t, young.turns, name)
			})
		}
	}
	playing.Wait()
	t.Logf("\n%s", table.String())
	// The option works: where Go leaves the key free for them, the old clients get more turns than where it does not.
	assert.Greater(t, got["bridge, pauses of 20ms"].turns, got["bridge, Yield -1, pauses of 20ms"].turns)
}

// play lets them work for a window, with pauses of half to one and a half times pause between the turns of a member,
// and wants that no two were inside.
func play(t *testing.T, server *redistest.Server, key string, window, pause time.Duration, args []string) (old, young share) {
	t.Helper()
	var members []*holders.Holder
	for range 2 {
		members = append(members, of(holders.JedisLock).at(t, server.URL())())
	}
	for range 2 {
		members = append(members, of("compat", args...).at(t, server.URL())())
	}
	var mu sync.Mutex
	var working sync.WaitGroup
	referee := redistest.NewReferee(t)
	end := time.Now().Add(window)
	for i, h := range members {
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		whose := &old
		if i >= 2 {
			whose = &young
		}
		working.Go(func() {
			for time.Now().Before(end) {
				h.Send("acquire %s", key)
				e := h.Next(time.Minute)
				if e.Event != "acquired" { // its own timeout is over
					continue
				}
				referee.Turn(func() {
					if time.Now().Before(end) {
						mu.Lock()
						whose.turns++
						whose.waits = append(whose.waits, e.WaitedMS)
						mu.Unlock()
					}
					time.Sleep(turnLasts) // the work
				})
				h.Send("release %s", key)
				h.Next(time.Minute)
				time.Sleep(pause/2 + time.Duration(rng.Int64N(int64(pause)))) // the pause
			}
		})
	}
	working.Wait()
	return old, young
}

const turnLasts = 100 * time.Millisecond
