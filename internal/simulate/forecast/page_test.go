package forecast

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/browser"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

const hostileName = `java-3 <img src=x onerror="document.title='pwned'"> of-a-very-long-name-that-has-no-place-to-break.example.com`

//go:embed testdata/probe.js
var probe string

// TestPageInABrowser opens the page on a screen and on a phone, light and dark. With a folder in LOCKMIGRATE_SCREENSHOTS the screens are
// kept there.
func TestPageInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	p := observed(0, 4000, 8000)
	p.Clients[2].Name = hostileName
	coming := made(t, p, Options{Span: 24 * time.Hour, Draws: 20, Commands: 20_000, Seed: 1, Failovers: Failovers{Every: time.Hour, Outage: time.Second, Behind: 2 * time.Second}})
	path := filepath.Join(t.TempDir(), "forecast.html")
	file, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, coming.WritePage(file, "fleet.json", "lockmigrate next --namespace NAME --match 'lock:*'"))
	require.NoError(t, file.Close())
	b, err := browser.Start(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer b.Close()
	for _, view := range []browser.View{{Width: 1280, Height: 900}, {Width: 1280, Height: 900, Dark: true}, {Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}} {
		shown := fmt.Sprintf("forecast-%d-%v", view.Width, map[bool]string{true: "dark", false: "light"}[view.Dark])
		t.Run(shown, func(t *testing.T) {
			require.NoError(t, b.Open("file://"+path+"?"+shown, view, "document.querySelector('footer')"))
			if keep := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); keep != "" {
				require.NoError(t, b.Picture(filepath.Join(keep, shown+".png"), 0))
			}
			var saw struct {
				Title                                string
				Wide, Cut, Overlaps, Requests, Small int
				Dark                                 bool
			}
			require.NoError(t, b.Eval(probe, &saw))
			require.NotEqual(t, "pwned", saw.Title)
			require.Zero(t, saw.Wide, "the page does not scroll sideways")
			require.Zero(t, saw.Cut, "nothing is cut off")
			require.Zero(t, saw.Overlaps, "no cell covers another")
			require.Zero(t, saw.Requests, "nothing is loaded")
			require.Zero(t, saw.Small, "nothing is too small to read")
			require.Equal(t, view.Dark, saw.Dark)
		})
	}
}
