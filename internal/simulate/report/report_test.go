package report

import (
	"bytes"
	"context"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// sample is a report of the standard sweep, with few runs. It is made once.
func sample(t testing.TB) []byte {
	t.Helper()
	made.Do(func() { samplePage = makeSample(t) })
	return samplePage
}

var (
	made       sync.Once
	samplePage []byte
)

func makeSample(t testing.TB) []byte {
	t.Helper()
	table := sim.StandardGrid()
	if !redistest.Thorough() {
		table.Skews = sim.Range(-12*time.Second, 12*time.Second, 6*time.Second)
	}
	plan := sim.Sweep{Cells: table.Cells(sim.StandardSetting()), Runs: 2, Seed: 1}
	outcomes, err := plan.Run(context.Background())
	require.NoError(t, err)
	r := Collect(table, outcomes, 1)
	r.Command = "lockmigrate simulate"
	r.Shrink()
	for _, c := range explore.Claims() {
		if c.Expected == explore.Violated && (len(r.Claims) < 10 || redistest.Thorough()) {
			r.Claims = append(r.Claims, explore.Check(context.Background(), c, explore.Limits{}))
		}
	}
	var b bytes.Buffer
	require.NoError(t, r.Write(&b))
	return b.Bytes()
}

func TestReportIsOneSmallFile(t *testing.T) {
	page := string(sample(t))
	require.Less(t, len(page), 500_000)
	require.NotRegexp(t, regexp.MustCompile(`(?i)(src|href)\s*=\s*"?(https?:|//)|url\(|@import|fetch\(|XMLHttpRequest`), page, "nothing may be loaded")
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bid="([^"]+)"`).FindAllStringSubmatch(page, -1) {
		require.False(t, ids[m[1]], "id %s twice", m[1])
		ids[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`href="#([^"]+)"`).FindAllStringSubmatch(page, -1) {
		require.True(t, ids[m[1]], "a link to #%s leads nowhere", m[1])
	}
	require.Contains(t, page, `id="clobber"`)
	require.NotContains(t, page, "ZgotmplZ")
	require.Equal(t, string(makeSample(t)), page, "the same seed is the same file")
}

// TestClobberNeedsNoSkew: nothing but a clobber that shortened a lease explains that run, and nothing in it can be left out.
func TestClobberNeedsNoSkew(t *testing.T) {
	w, s := new(sim.World), Clobber()
	for i := range s.Fleet.Clients {
		require.Zero(t, s.Fleet.Clients[i].Offset)
	}
	r := w.Run(&s.Fleet, s.Seed)
	for _, e := range s.Expect {
		_, met := e.Met(&r.Tally)
		require.True(t, met, e)
	}
	h := &r.Hazards
	require.Zero(t, h[sim.EarlyTakeover]+h[sim.DoubleWin]+h[sim.Overrun]+h[sim.StaleDelete]+h[sim.UnitMismatch]+h[sim.LostUpdate])
	small := sim.NewShrinker(w, skewStep).Shrink(&s.Fleet)
	require.Equal(t, sim.WeightOf(&s.Fleet), sim.WeightOf(small))
}
