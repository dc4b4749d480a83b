package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

//go:embed testdata/probe.js
var probe string

// TestReportInABrowser opens a report on a screen and on a phone, light and dark. With a folder in LOCKMIGRATE_SCREENSHOTS the screens are kept there.
func TestReportInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	scripts, err := txtar.ParseFile(filepath.Join("testdata", "script", "forecast.txtar"))
	require.NoError(t, err)
	fleet := scripts.Files[slices.IndexFunc(scripts.Files, func(f txtar.File) bool { return f.Name == "skewed.json" })].Data
	const hostile = `java-2 <img src=x onerror=\"document.title='pwned'\"> of-a-very-long-name-that-has-no-place-to-break.example.com`
	file, page := filepath.Join(t.TempDir(), "fleet.json"), filepath.Join(t.TempDir(), "forecast.html")
	require.NoError(t, os.WriteFile(file, bytes.ReplaceAll(fleet, []byte("java-2"), []byte(hostile)), 0o600))
	lockmigrateIn(t.Context(), false, "forecast", file, "--span", "24h", "--draws", "20", "--failovers", "every=1h,outage=1s,behind=2s", "--html", page)
	b := redistest.NewChromium(t)
	for _, view := range []redistest.View{{Width: 1280, Height: 900}, {Width: 1280, Height: 900, Dark: true}, {Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}} {
		shown := fmt.Sprintf("forecast-%d-%v", view.Width, map[bool]string{true: "dark", false: "light"}[view.Dark])
		t.Run(shown, func(t *testing.T) {
			b.Open(t, "file://"+page+"?"+shown, view, "document.querySelectorAll('section').length > 5")
			if keep := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); keep != "" {
				b.Picture(t, filepath.Join(keep, shown+".png"), 0)
			}
			var saw struct {
				Title                                string
				Wide, Cut, Overlaps, Requests, Small int
				Dark                                 bool
			}
			b.Eval(t, probe, &saw)
			require.Equal(t, "Double holds to come", saw.Title)
			require.Zero(t, saw.Wide, "the page does not scroll sideways")
			require.Zero(t, saw.Cut, "nothing is cut off")
			require.Zero(t, saw.Overlaps, "no cell covers another")
			require.Zero(t, saw.Requests, "nothing is loaded")
			require.Zero(t, saw.Small, "nothing is too small to read")
			require.Equal(t, view.Dark, saw.Dark)
		})
	}
}
