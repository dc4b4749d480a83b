package pipeline

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// TestClientAndServerWorkAtOnce: the callers whom one read has woken do not all go into one write. Else the server would wait
// for the last of them, and all of them for the server. Nor does each of many write alone.
func TestClientAndServerWorkAtOnce(t *testing.T) {
	for _, procs := range []int{1, 2} {
		for _, callers := range []int{4, 8, 16, 64, 256} {
			t.Run(fmt.Sprintf("%d processors, %d callers", procs, callers), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				const rounds = 50
				f := newFake()
				l := over(t, f, nil)
				var all sync.WaitGroup
				for range callers {
					all.Go(func() {
						for range rounds {
							_, err := l.Request(t.Context(), wire.Plain("COMMAND"))
							assert.NoError(t, err)
						}
					})
				}
				before := 0
				for round := range rounds { // the server answers everybody at once, as one that was slow does
					eventually(t, "everybody has asked", func() bool { return f.sent() == (round+1)*callers })
					if round == rounds/2 {
						before = f.writes()
					}
					for range callers {
						f.replies <- "OK"
					}
				}
				all.Wait()
				writes := float64(f.writes()-before) / (rounds/2 - 1)
				if procs == 1 { // several run the callers at once: how many meet in a write is chance
					require.GreaterOrEqual(t, writes, 2.0, "writes for each round")
				}
				require.LessOrEqual(t, writes, max(4, float64(callers)/4), "writes for each round")
			})
		}
	}
}

// TestAServerWithNothingToDoIsAskedAtOnce: the first command after a pause goes out alone, however many callers there were lately.
// While the server works on it, half of the crowd makes the next write.
func TestAServerWithNothingToDoIsAskedAtOnce(t *testing.T) {
	for _, procs := range []int{1, 2} {
		f := newFake()
		k := newLink(&server{owner: New(Options{Dial: f.dial})})
		k.conn, k.procs, k.crowd, k.timer = f, procs, 8, time.NewTimer(time.Hour) // no writer runs
		writes := func(commands int) int {
			for range commands {
				ok, err := k.submit(t.Context(), newCall(&wire.Request{Name: "PING"}))
				require.True(t, ok && err == nil)
			}
			return f.writes()
		}
		require.Equal(t, 1, writes(1))
		require.Equal(t, 1, writes(3))
		require.Equal(t, 2, writes(1))
		require.Equal(t, 5, f.sent())
	}
}
