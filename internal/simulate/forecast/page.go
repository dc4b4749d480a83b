package forecast

import (
	_ "embed"
	"html/template"
	"io"
	"math"

	"github.com/lockmigrate/lockmigrate/internal/page"
)

//go:embed page.html
var layout string

// WritePage writes the forecast as one HTML page that loads nothing from a network. From is the profile's name, next the command
// that tells how the migration goes on.
func (f *Forecast) WritePage(w io.Writer, from, next string) error {
	t, err := page.Report(layout, template.FuncMap{
		"number": Number, "hours": Hours, "margin": Margin,
		// The bars of the intervals have one scale, by the logarithm: stages differ by orders of magnitude.
		"along": func(x float64) float64 {
			most := 1.0
			for _, s := range f.Stages {
				most = max(most, s.Count.High)
			}
			return math.Round(1000*math.Log1p(x)/math.Log1p(most)) / 10
		},
		"minus": func(a, b float64) float64 { return math.Round(10*(a-b)) / 10 },
	})
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		*Forecast
		From, Next string
		Style      template.CSS
		Parts      []page.Shares
	}{f, from, next, page.ReportStyle(), f.Stages[0].parts()})
}

// Watched says when the fleet was watched.
func (f *Forecast) Watched() string {
	const minute = "2 Jan 2006, 15:04 UTC"
	return f.Begun.Format(minute) + " to " + f.Ended.Format(minute)
}

// parts are the tables of who and what.
func (s *Stage) parts() (all []page.Shares) {
	for _, of := range []struct {
		page.Shares
		shares []Share
	}{
		{page.Shares{Head: "By cause", Of: "cause"}, s.Causes},
		{page.Shares{Head: "By client: whose clock, hold time or late delete it is", Of: "client", Mono: true}, s.Clients},
		{page.Shares{Head: "By keys", Of: "keys", Mono: true}, s.Families},
	} {
		for _, x := range of.shares {
			of.Add(x.Name, Number(x.Mean), x.Mean, s.Count.Mean)
		}
		all = append(all, of.Shares)
	}
	return all
}
