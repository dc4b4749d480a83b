// Package report tells what happened: a run as lines of a trace, as sentences and as the lanes of a timeline; what a sweep and a
// search found as one HTML file. No script or style is loaded
// from anywhere, and all of it can be read without JavaScript, which only adds copying and arrow keys.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"

	looks "github.com/lockmigrate/lockmigrate/internal/page"
	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// Report is what one file shows.
type Report struct {
	Command   string
	Seed      uint64
	TraceHash string
	Ops       int64
	Simulated time.Duration
	Grid      sim.Grid
	Outcomes  []sim.Outcome // in the order of Grid.Cells
	Runs      []Run
	Rows      []Row
	Claims    []explore.Finding
}

// Row is one line of the table: where a scheme breaks, and where it should.
type Row struct {
	Scheme     string
	Breaks     string // the least skew that broke it
	Predicted  string
	Cells      int
	Broken     int
	Overlaps   int64
	Unpromised int64
}

// Run is one shrunk run.
type Run struct {
	ID       string
	Title    string
	Fleet    *sim.Fleet
	Records  []sim.Record
	Replay   string
	Scenario string
}

//go:embed report.html
var page string

//go:embed report.css
var style string

//go:embed report.js
var behaviour string

// Write writes the file.
func (r *Report) Write(w io.Writer) error {
	t, err := looks.Report(page, template.FuncMap{
		"seconds": func(d time.Duration) string { return d.Round(time.Second).String() },
		"time":    func(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) },
	})
	if err != nil {
		return err
	}
	proven, broken := r.claims()
	return t.Execute(w, struct {
		*Report
		Style   template.CSS
		Script  template.JS
		Schemes []schemeView
		Cards   []card
		Proven  []explore.Finding
		Broken  []claimView
		Next    []advice
	}{r, looks.Style() + template.CSS(style), template.JS(behaviour), r.schemes(), r.cards(), proven, broken, r.next()})
}

// advice is a thing to do after reading, and the command that does it.
type advice struct{ Why, Do string }

// next says what follows from the numbers.
func (r *Report) next() []advice {
	var all []advice
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Unpromised() > 0 {
			all = append(all, advice{o.Scheme + " broke where it promises not to. Play that run, and report it with this file.", PlayCommand(o) + " --shrink"})
			break
		}
	}
	for _, row := range r.Rows {
		if row.Scheme == "legacy" && row.Broken > 0 {
			why := fmt.Sprintf("Old clients broke at a skew of %s, with lease %v and hold time %v. Measure the clocks, leases and hold times of your fleet.", row.Breaks, r.Grid.Lease, r.Grid.Hold)
			if row.Breaks == nowhere || row.Breaks == notTried {
				why = "Old clients broke in some cells. Measure the clocks, leases and hold times of your fleet."
			}
			all = append(all, advice{why, "lockmigrate observe --for 10m --profile fleet.json"})
		}
	}
	return append(all,
		advice{"Ask how often your own fleet will have two holders: its clients, leases, hold times and clocks.", "lockmigrate forecast fleet.json"},
		advice{"Bridges and tokens go by the server's clock alone. See where your migration stands, and its next step.", "lockmigrate next --namespace orders --match 'lock.order.*'"})
}

// schemeView is one scheme's two maps.
type schemeView struct {
	Name   string
	About  string
	Leases template.HTML
	Holds  template.HTML
	Hold   time.Duration
	Lease  time.Duration
}

var about = map[string]string{
	"legacy":   "Only old clients. A live lease is stolen when the skew exceeds what is left of it.",
	"mixed-25": "A quarter are bridges. Old clients still steal from each other, at the same skew.",
	"mixed-50": "Half are bridges.",
	"mixed-75": "One old client is left: nobody it could be confused with, except by a clock far behind.",
	"bridge":   "Only bridges. No clock but the server's decides anything.",
	"modern":   "Only token locks. No clock but the server's decides anything.",
}

func (r *Report) schemes() []schemeView {
	var views []schemeView
	perScheme := (len(r.Grid.Leases) + len(r.Grid.Holds)) * len(r.Grid.Skews)
	for i, name := range r.Grid.Schemes {
		cells := r.Outcomes[i*perScheme : (i+1)*perScheme]
		leases := cells[:len(r.Grid.Leases)*len(r.Grid.Skews)]
		holds := cells[len(leases):]
		views = append(views, schemeView{
			Name: name, About: about[name], Hold: r.Grid.Hold, Lease: r.Grid.Lease,
			Leases: r.heatMap(name, "lease", r.Grid.Leases, leases),
			Holds:  r.heatMap(name, "hold", r.Grid.Holds, holds),
		})
	}
	return views
}

func (r *Report) heatMap(scheme, axis string, rows []time.Duration, cells []sim.Outcome) template.HTML {
	h := heatMap{skews: r.Grid.Skews, rows: rows}
	for i := range rows {
		var line []*sim.Outcome
		for j := range r.Grid.Skews {
			line = append(line, &cells[i*len(r.Grid.Skews)+j])
		}
		h.cells = append(h.cells, line)
	}
	return template.HTML(h.draw(fmt.Sprintf("%s: skew against %s", scheme, axis), func(row int, o *sim.Outcome) string {
		if o.Broken == 0 {
			return ""
		}
		return r.nearest(scheme, axis, rows, row, o.Skew < 0)
	}))
}

// nearest finds the run that a broken cell shows: that of its row, or of the row nearest to it, since
// the file has no room for all.
func (r *Report) nearest(scheme, axis string, rows []time.Duration, row int, behind bool) string {
	best, least := "", time.Duration(1<<62)
	for i := range r.Runs {
		for _, value := range rows {
			if d := (value - rows[row]).Abs(); d < least && r.Runs[i].ID == RunID(scheme, axis, value, behind) {
				best, least = r.Runs[i].ID, d
			}
		}
	}
	return best
}

// RunID names the run that a row of a map links to, for skews of one sign.
func RunID(scheme, axis string, value time.Duration, behind bool) string {
	id := fmt.Sprintf("%s-%s-%d", scheme, axis, value.Milliseconds())
	if behind {
		id += "-behind"
	}
	return id
}

// card is one run as it is shown.
type card struct {
	*Run
	Picture template.HTML
	Phone   template.HTML // the same for a narrow screen
	Steps   []Moment
	Names   []string
}

// Who names the client of a step.
func (c card) Who(client int) string {
	if client < 0 {
		return "server"
	}
	return c.Names[client]
}

func (r *Report) cards() []card {
	var cards []card
	for i := range r.Runs {
		run := &r.Runs[i]
		t := Draw(run.Fleet, run.Records)
		c := card{Run: run, Steps: t.Steps, Picture: template.HTML(drawTimeline(t, run.ID, onScreen)), Phone: template.HTML(drawTimeline(t, run.ID, onPhone))}
		for j := range run.Fleet.Clients {
			c.Names = append(c.Names, run.Fleet.Clients[j].Name)
		}
		cards = append(cards, c)
	}
	return cards
}

// claimView is a counterexample as a table: a column for each client, filled where it is inside.
type claimView struct {
	explore.Finding
	Names []string
	Lines []claimLine
}

type claimLine struct {
	Tick    int
	Cells   []claimCell
	Key     string
	Overlap bool
}

type claimCell struct {
	Who    string
	Text   string
	Inside bool
}

// claims parts those that hold from those that break.
func (r *Report) claims() (proven []explore.Finding, broken []claimView) {
	for i := range r.Claims {
		if f := &r.Claims[i]; f.Verdict == explore.Violated {
			broken = append(broken, viewClaim(f))
		} else {
			proven = append(proven, *f)
		}
	}
	return proven, broken
}

func viewClaim(f *explore.Finding) claimView {
	v := claimView{Finding: *f}
	for i := range f.Model.Clients {
		v.Names = append(v.Names, f.Model.Clients[i].Name+" ("+f.Model.Clients[i].Scheme.String()+")")
	}
	for i := range f.Trace {
		step := &f.Trace[i]
		line := claimLine{Tick: step.Tick, Key: step.Key, Cells: make([]claimCell, len(v.Names)), Overlap: len(step.Inside) > 1}
		for c := range line.Cells {
			line.Cells[c].Who = v.Names[c]
		}
		for _, c := range step.Inside {
			line.Cells[c].Inside = true
		}
		if step.Client >= 0 {
			line.Cells[step.Client].Text = step.What
		} else if i > 0 && f.Trace[i-1].Client < 0 && f.Trace[i-1].What == step.What {
			v.Lines[len(v.Lines)-1] = line // ticks in a row are one line
			continue
		}
		v.Lines = append(v.Lines, line)
	}
	return v
}

// Style is the sheet of a report, with the classes of Pictures; page.Style comes before it.
func Style() template.CSS { return template.CSS(style) }
