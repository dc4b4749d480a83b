package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	looks "github.com/lockmigrate/lockmigrate/internal/page"
	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
	"github.com/lockmigrate/lockmigrate/internal/simulate/load"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Fleet is the page of one fleet: what its runs came to, and what they come to at each stage of its migration.
type Fleet struct {
	From    string // the profile's file
	Command string // that made the page
	Plays   *sim.Fleet
	Clients []string                // their names, by number; several may have one
	Family  func(key string) string // the kind of keys that a key is of
	Seed    uint64
	Seeds   int
	Replay  func(seed uint64) string // the command that tells the run of a seed
	Next    string                   // the command that shows the next step of a migration

	watching sync.Mutex
	found    [forecast.Causes]map[string]int64 // double holds by client to blame
	families map[string]int64
	times    [forecast.Causes][parts]float64
	played   sim.Played
	rows     []stageRow
}

// parts is in how many parts of a run double holds are counted, for the chart.
const parts = 60

// Watch is sim.Parallel's Watch for the runs of the fleet as it is.
func (f *Fleet) Watch(uint64, int) func(*sim.Record) {
	j := forecast.NewJudge(f.Plays)
	j.Each = func(o forecast.Overlap) {
		who := "(the server)"
		if o.By != forecast.Server {
			who = f.Clients[o.By]
		}
		f.watching.Lock()
		defer f.watching.Unlock()
		if f.found[o.Cause] == nil {
			f.found[o.Cause] = map[string]int64{}
		}
		if f.families == nil {
			f.families = map[string]int64{}
		}
		f.found[o.Cause][who]++
		f.families[f.Family(o.Key)]++
		f.times[o.Cause][min(int64(o.At)*parts/int64(f.Plays.Until), parts-1)]++
	}
	return j.See
}

// stageRow is the fleet at one stage.
type stageRow struct {
	Name, What string
	sim.Tally
}

// Wait is the mean of those that acquired.
func (s stageRow) Wait() time.Duration { return s.Waited / time.Duration(max(s.Acquisitions, 1)) }

// Play takes what the fleet as it is came to, and plays it at the other stages.
func (f *Fleet) Play(played sim.Played, workers int, progress func(stage string)) {
	f.played = played
	for i, c := range load.Compositions(f.Plays) {
		sum := played.Sum()
		if i > 0 {
			progress(c.Name)
			again := sim.Parallel{Workers: workers}
			other := again.Run(c.Fleet, f.Seed, f.Seeds)
			sum = other.Sum()
		}
		f.rows = append(f.rows, stageRow{c.Name, c.What, sum.Tally})
	}
}

//go:embed fleet.html
var fleetPage string

// Write writes the page, one file that loads nothing from a network.
func (f *Fleet) Write(w io.Writer) error {
	t, err := looks.Report(fleetPage, template.FuncMap{
		"number": number, "time": func(d time.Duration) time.Duration { return d.Round(time.Millisecond) },
		"hour": func(n int64) string { return forecast.Number(float64(n) / f.Plays.Until.Hours() / float64(f.Seeds)) },
		"along": func(n int64) float64 {
			most := int64(1)
			for _, r := range f.rows {
				most = max(most, r.Overlaps)
			}
			return float64(1000*n/most) / 10
		},
	})
	if err != nil {
		return err
	}
	style, script := looks.Charts()
	return t.Execute(w, struct {
		*Fleet
		Style     template.CSS
		Charts    template.JS
		Sum       sim.Result
		Masters   int
		Rows      []stageRow
		Parts     []looks.Shares
		Chart     chart
		Dangers   []danger
		Advice    []advice
		TraceHash string
	}{f, looks.ReportStyle() + style, script, f.played.Sum(), max(f.Plays.Masters, 1), f.rows, f.parts(), f.chart(), f.dangers(), f.advice(), fmt.Sprintf("%016x", f.played.Hash)})
}

func number(n int64) string { return forecast.Number(float64(n)) }

// parts are the tables of causes, clients and families.
func (f *Fleet) parts() []looks.Shares {
	byCause, byClient := map[string]int64{}, map[string]int64{}
	for c, clients := range f.found {
		for _, name := range slices.Sorted(maps.Keys(clients)) {
			byCause[forecast.Cause(c).String()] += clients[name]
			byClient[name] += clients[name]
		}
	}
	all := []looks.Shares{{Head: "By cause", Of: "cause"}, {Head: "By client: whose clock, hold time or late delete it is", Of: "client", Mono: true}, {Head: "By keys", Of: "keys", Mono: true}}
	whole := f.played.Sum().Overlaps
	for i, of := range []map[string]int64{byCause, byClient, f.families} {
		for _, name := range ranked(of) {
			all[i].Add(name, number(of[name]), float64(of[name]), float64(whole))
		}
	}
	return all
}

// ranked are the names with the largest counts first.
func ranked(of map[string]int64) []string {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
}

// chart is what lockmigrateChart draws; Series has one for each cause.
type chart struct {
	X      []float64 `json:"x"` // minutes
	Series []line    `json:"series"`
	Unit   string    `json:"unit"`
	XLabel string    `json:"xlabel"`
	Height int       `json:"height"`
}

type line struct {
	Name  string    `json:"name"`
	Color string    `json:"color"`
	Y     []float64 `json:"y"`
}

// colors of the causes, as the style sheet names them.
var colors = [forecast.Causes]string{"legacy", "warn", "redisson", "modern", "unknown", "bad"}

func (f *Fleet) chart() chart {
	c := chart{Unit: fmt.Sprintf("double holds in %s", f.Plays.Until/parts), XLabel: "minutes of the run", Height: 240}
	if f.Seeds > 1 {
		c.Unit += fmt.Sprintf(", %d runs", f.Seeds)
	}
	for i := range parts {
		c.X = append(c.X, f.Plays.Until.Minutes()*float64(i)/parts)
	}
	for cause := range f.times {
		if len(f.found[cause]) > 0 {
			c.Series = append(c.Series, line{forecast.Cause(cause).String(), colors[cause], f.times[cause][:]})
		}
	}
	return c
}

// danger is a hazard and how often it came.
type danger struct {
	Name string
	N    int64
}

func (f *Fleet) dangers() (all []danger) {
	sum := f.played.Sum()
	for h, n := range sum.Hazards {
		if n > 0 {
			all = append(all, danger{sim.Hazard(h).String(), n})
		}
	}
	return all
}

// advice says what follows from the numbers.
func (f *Fleet) advice() (all []advice) {
	sum := f.played.Sum()
	if sum.Overlaps == 0 {
		all = append(all, advice{"No double hold came in the time that was simulated. That does not say never: ask how many a month will have.", "lockmigrate forecast " + f.From})
	} else {
		all = append(all, advice{"See how the first double hold came about.", f.Replay(f.played.Broken)})
		for _, mend := range []struct {
			cause forecast.Cause
			what  string
		}{{forecast.Skew, "Set the clock of %s right: it causes most double holds by skew."}, {forecast.Overrun, "Give %s a longer lease, or shorter work: it causes most overruns."}} {
			if who := ranked(f.found[mend.cause]); len(who) > 0 {
				all = append(all, advice{fmt.Sprintf(mend.what, who[0]), ""})
			}
		}
		all = append(all, advice{"Ask how many double holds a month will have, with an interval for what was not measured well.", "lockmigrate forecast " + f.From})
	}
	if i := slices.IndexFunc(f.rows, func(r stageRow) bool { return r.Name == "bridge" }); i >= 0 {
		why := "Plan the migration: see where it stands, and its next step."
		if sum.Overlaps > 0 && f.rows[i].Overlaps < sum.Overlaps {
			why = fmt.Sprintf("At stage bridge the same fleet has %s double holds, not %s. See where your migration stands, and its next step.", number(f.rows[i].Overlaps), number(sum.Overlaps))
		}
		all = append(all, advice{why, f.Next})
	}
	return all
}
