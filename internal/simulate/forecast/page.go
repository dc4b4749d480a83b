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

// WritePage writes the forecast as one HTML page that loads nothing from a network. From is the profile's name.
func (f *Forecast) WritePage(w io.Writer, from string) error {
	t, err := template.New("forecast").Funcs(template.FuncMap{
		"number": Number, "hours": Hours, "margin": Margin,
		"percent": func(part, whole float64) int { return int(math.Round(100 * part / max(whole, 1e-300))) },
		// The bars of the intervals have one scale, by the logarithm: stages differ by orders of magnitude.
		"along": func(x float64) float64 {
			most := 1.0
			for _, s := range f.Stages {
				most = max(most, s.Count.High)
			}
			return math.Round(1000*math.Log1p(x)/math.Log1p(most)) / 10
		},
		"minus": func(a, b float64) float64 { return math.Round(10*(a-b)) / 10 },
		"top":   func(all []Share) []Share { return all[:min(len(all), 20)] },
		"class": func(name string) string {
			if name == "bridge, half" {
				name = "bridge"
			}
			return name
		},
	}).Parse(layout)
	if err != nil {
		return err
	}
	return t.Execute(w, struct {
		*Forecast
		From  string
		Style template.CSS
	}{f, from, page.Style()})
}
