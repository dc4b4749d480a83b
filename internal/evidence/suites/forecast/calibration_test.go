package forecast

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
)

var (
	calibrate = flag.Bool("calibrate", false, "observe and run the real fleets, and keep what was measured in testdata; run it with -parallel 10, it takes 14 minutes")
	update    = flag.Bool("update", false, "write the table of docs/forecast.md")
)

// trial is what was measured of one fleet.
type trial struct {
	Name    string          `json:"name"`
	What    string          `json:"what"`
	Profile profile.Profile `json:"profile"` // of the window
	Seen    int             `json:"seen"`    // double holds in the window, by the referee
	Seconds float64         `json:"seconds"` // of the run after the window
	Turns   int             `json:"turns"`   // in the run
	Double  int             `json:"double"`  // double holds in the run, by the referee
}

// try lets a fleet run on a server of its own, observes it for a window, and counts its double holds after that.
func (f *fleet) try(t *testing.T, window, span time.Duration) trial {
	// The members come from addresses of their own, which a server in protected mode refuses.
	server := redistest.Real(t, "--protected-mode", "no")
	if _, err := redistest.InStage(server.Pool(), compat.Bridge, "", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	end, err := endpoint.Parse(server.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, wait := f.run(ctx, t, server)
	defer wait()
	defer cancel()
	time.Sleep(min(5*time.Second, window/4))
	_, before := r.counts()
	w, err := observe.StartMasters(ctx, end, observe.Options{Group: observe.ByHost}, observe.Limits{For: window, Load: 10}, func(observe.EventRow) {})
	require.NoError(t, err)
	require.NoError(t, w.Wait())
	turns, seen := r.counts()
	began := time.Now()
	time.Sleep(span)
	took := time.Since(began)
	allTurns, all := r.counts()
	return trial{Name: f.name, What: f.what, Profile: w.Profile(), Seen: seen - before, Seconds: took.Seconds(), Turns: allTurns - turns, Double: all - seen}
}

func (tr *trial) file() string { return filepath.Join("testdata", tr.Name+".json") }

// forecast is what the profile of the window says of a span as long as the run.
func (tr *trial) forecast(t *testing.T, draws int) *forecast.Forecast {
	t.Helper()
	made, err := forecast.Make(tr.Profile, forecast.Options{Span: time.Duration(tr.Seconds * float64(time.Second)), Seed: 1, Draws: draws, Today: true})
	require.NoError(t, err, tr.Name)
	return made
}

// TestCalibration compares what was measured of ten real fleets with the forecast that their windows make: at least nine of ten lie in
// the interval, and where more than ten double holds happened it is no wider than a factor of four. With -calibrate it
// measures first.
func TestCalibration(t *testing.T) {
	if raced {
		t.Skip("it simulates for many hours: scripts/test runs it without the race detector")
	}
	redistest.Need(t, redistest.Proofs)
	if *calibrate {
		t.Run("measure", func(t *testing.T) {
			for _, f := range fleets() {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					redistest.Need(t, redistest.Redis, redistest.Java, redistest.Python)
					tr := f.try(t, 2*time.Minute, 10*time.Minute)
					text, err := json.Marshal(tr)
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(tr.file(), append(text, '\n'), 0o644))
				})
			}
		})
	}
	draws := 40
	if *update {
		draws = 100
	}
	var table strings.Builder
	fmt.Fprintln(&table, "| fleet | seen in 2 minutes | forecast for 10 minutes | 90 % interval | measured | inside |\n|---|---|---|---|---|---|")
	inside := 0
	for _, f := range fleets() {
		tr := trial{Name: f.name}
		text, err := os.ReadFile(tr.file())
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &tr))
		made := tr.forecast(t, draws)
		s := made.Stages[0]
		said := "no"
		if n := float64(tr.Double); n >= s.Count.Low && n <= s.Count.High {
			inside++
			said = "yes"
		}
		assert.False(t, made.Incomplete, "%s: %v", tr.Name, made.NotKnown)
		if tr.Double > 10 {
			assert.LessOrEqual(t, s.Count.High, 4*s.Count.Low, "%s: %+v, measured %d", tr.Name, s.Count, tr.Double)
		}
		if tr.Name == "unshared" {
			assert.Zero(t, tr.Double)
			assert.Equal(t, forecast.Interval{}, s.Count)
		}
		fmt.Fprintf(&table, "| %s: %s | %d | %s | %s to %s | %d | %s |\n", tr.Name, tr.What, tr.Seen, forecast.Number(s.Count.Mean), forecast.Number(s.Count.Low), forecast.Number(s.Count.High), tr.Double, said)
	}
	t.Logf("%d of %d inside\n%s", inside, len(fleets()), table.String())
	assert.GreaterOrEqual(t, inside, len(fleets())*7/8)
	if *update {
		redistest.Section(t, filepath.Join("..", "..", "..", "..", "docs", "forecast.md"), "calibration", "internal/evidence/suites/forecast", table.String(), true)
	}
}

// TestRunningFleets is the short form on a real server: a fleet whose clocks are apart, and one that shares no key.
func TestRunningFleets(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python)
	skewed := same(4, member{kind: pythonLock, lease: 1000 * ms, keys: []string{"stock:1"}, hold: between(300*ms, 800*ms), think: between(0, 100*ms)})
	skewed[0].clock = 600 * ms
	alone := same(3, member{kind: pythonLock, lease: 1000 * ms, hold: between(300*ms, 1500*ms), think: between(0, 100*ms)})
	for i := range alone {
		alone[i].keys, alone[i].clock = []string{fmt.Sprintf("order:%d", i)}, time.Duration(i)*time.Minute
	}
	for _, f := range []fleet{{"skewed", "", skewed}, {"alone", "", alone}} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			tr := f.try(t, 8*time.Second, 12*time.Second)
			s := tr.forecast(t, 20).Stages[0]
			t.Logf("forecast %+v, measured %d in %d turns", s.Count, tr.Double, tr.Turns)
			require.Greater(t, tr.Turns, 5)
			if f.name == "alone" {
				assert.Zero(t, tr.Double)
				assert.Equal(t, forecast.Interval{}, s.Count)
				return
			}
			assert.Positive(t, tr.Double)
			assert.Positive(t, s.Count.Low)
			// Twenty draws of a window of eight seconds: half below and twice above the interval is still far from a fleet on one key
			// that shares nothing, or one whose clocks agree.
			assert.GreaterOrEqual(t, float64(tr.Double), s.Count.Low/2)
			assert.LessOrEqual(t, float64(tr.Double), 2*s.Count.High)
		})
	}
}
