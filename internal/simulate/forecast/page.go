package forecast

import (
	_ "embed"
	"html/template"
	"io"
	"math"

	"github.com/lockmigrate/lockmigrate/internal/operate/page"
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
		"minus":   func(a, b float64) float64 { return math.Round(10*(a-b)) / 10 },
		"first":   func(all []Share) []Share { return all[:min(len(all), 20)] },
		"percent": func(x float64) int { return int(math.Round(100 * x / max(f.Stages[0].Count.Mean, 1e-300))) },
	})
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		*Forecast
		From, Next string
		Style      template.CSS
	}{f, from, next, page.ReportStyle()})
}

// Watched says when the fleet was watched.
func (f *Forecast) Watched() string {
	const minute = "2 Jan 2006, 15:04 UTC"
	return f.Begun.Format(minute) + " to " + f.Ended.Format(minute)
}

// Part is one way to divide the double holds of a stage.
type Part struct {
	By, Head string
	Mono     bool // names are those of clients or keys
	Shares   []Share
}

// Parts say who and what brings the double holds.
func (s *Stage) Parts() []Part {
	return []Part{
		{"cause", "By cause", false, s.Causes},
		{"client", "By client: whose clock, hold time or late delete it is", true, s.Clients},
		{"keys", "By keys", true, s.Families},
	}
}
