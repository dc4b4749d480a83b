package report

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/browser"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

//go:embed testdata/probe.js
var probe string

// TestInABrowser opens the report on a screen and on a phone, light and dark. With a folder in LOCKMIGRATE_SCREENSHOTS
// the screens are kept there, to be looked at.
func TestInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	file := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(file, sample(t), 0o644))
	b, err := browser.Start(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer b.Close()
	for name, view := range map[string]browser.View{
		"report-1280-light": {Width: 1280, Height: 900}, "report-1280-dark": {Width: 1280, Height: 900, Dark: true}, "report-800": {Width: 800, Height: 900},
		"report-390-light": {Width: 390, Height: 844}, "report-390-dark": {Width: 390, Height: 844, Dark: true},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, b.Open("file://"+file+"?"+name, view, "document.querySelector('button[data-copy]:not([hidden])')"))
			if folder := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); folder != "" {
				require.NoError(t, b.Picture(filepath.Join(folder, name+".png"), 0))
			}
			var saw struct {
				Before, Target, After                                             string
				Copy, Requests, Wide, Cut, Overlaps, Clash, Labels, Out, Pictures int
				Moved                                                             bool
			}
			require.NoError(t, b.Eval(probe, &saw))
			require.NotContains(t, saw.Before, ",", "one run is shown at first")
			require.NotEmpty(t, saw.Before)
			require.Equal(t, saw.Target, saw.After, "the click shows its run")
			require.NotZero(t, saw.Copy)
			require.True(t, saw.Moved, "arrow keys move between cells")
			require.Zero(t, saw.Requests, "nothing is loaded")
			require.Zero(t, saw.Wide, "the page does not scroll sideways")
			if view.Width != 800 {
				require.Zero(t, saw.Cut, "and nothing on it does")
			}
			require.Zero(t, saw.Overlaps)
			require.Zero(t, saw.Clash, "no label of a run covers another")
			require.Zero(t, saw.Labels, "nor of a map")
			require.Zero(t, saw.Out, "no label of a map is cut")
			require.Equal(t, 1, saw.Pictures, "one of the two formats")
		})
	}
}

// TestWithoutScript: all that the page says is there when nothing runs.
func TestWithoutScript(t *testing.T) {
	page := string(sample(t))
	without := regexp.MustCompile(`(?s)<script>.*?</script>`).ReplaceAllString(page, "")
	require.Contains(t, without, "SETNX orders")
	require.Contains(t, without, "lockmigrate simulate --scheme legacy")
	require.Contains(t, without, "inside at the same time")
	require.Contains(t, without, "lockmigrate observe --for 10m --profile fleet.json", "what to do next")
}
