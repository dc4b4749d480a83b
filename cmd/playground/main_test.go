//go:build !js

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/browser"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

const ready = "document.body.dataset.first && document.getElementById('map').dataset.full"

// TestInABrowser opens the page on a screen and on a phone, light and dark, and moves a slider and the map by keys. With a folder in
// LOCKMIGRATE_SCREENSHOTS the screens are kept there, to be looked at.
func TestInABrowser(t *testing.T) {
	redistest.Need(t, redistest.Browser)
	file := filepath.Join(t.TempDir(), "playground.html")
	require.NoError(t, write(file))
	size, err := os.Stat(file)
	require.NoError(t, err)
	require.Less(t, size.Size(), int64(4<<20))
	b, err := browser.Start(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer b.Close()
	type seen struct {
		Said, Scheme, Scenario, Address, Language string
		Requests, Wide, Here, Broken, Pictures    int
	}
	look := func(t *testing.T) (s seen) {
		t.Helper()
		require.NoError(t, b.Eval(`(async function () {
  var shown = [].filter.call(document.querySelectorAll("#picture svg"), function (e) { return e.getBoundingClientRect().height > 0; });
  return { Said: document.getElementById("said").innerText, Scheme: document.getElementById("scheme").value, Address: location.hash, Language: document.documentElement.lang,
    Scenario: await (await fetch(document.getElementById("file").href)).text(),
    Requests: performance.getEntriesByType("resource").filter(function (r) { return !r.name.startsWith("blob:"); }).length,
    Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, Here: document.querySelectorAll("#map .here").length,
    Broken: document.querySelectorAll("#map .k4").length, Pictures: shown.length };
})()`, &s))
		return s
	}
	acted := func(t *testing.T, what func()) { // until the page has played again, and filled its map
		t.Helper()
		var before string
		require.NoError(t, b.Eval("document.body.dataset.played", &before))
		what()
		require.NoError(t, b.Eval(`new Promise(function (done) {
  (function look() { document.body.dataset.played !== "`+before+`" && document.getElementById("map").dataset.full ? done() : setTimeout(look, 10); })();
})`, nil))
	}
	for name, view := range map[string]browser.View{
		"playground-1280-light": {Width: 1280, Height: 900}, "playground-1280-dark": {Width: 1280, Height: 900, Dark: true, Still: true},
		"playground-390-light": {Width: 390, Height: 844}, "playground-390-dark": {Width: 390, Height: 844, Dark: true},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, b.Open("file://"+file+"?"+name+"#lang=en", view, ready))
			if folder := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); folder != "" {
				require.NoError(t, b.Picture(filepath.Join(folder, name+".png"), 0))
			}
			s := look(t)
			assert.Contains(t, s.Said, "comes in beside")
			assert.Contains(t, s.Said, "the clocks disagree")
			assert.Contains(t, s.Scenario, "expect overlaps > 0")
			assert.Zero(t, s.Requests, "nothing is loaded")
			assert.Zero(t, s.Wide, "the page does not scroll sideways")
			assert.Equal(t, 1, s.Here)
			assert.Greater(t, s.Broken, 50)
			assert.Equal(t, 1, s.Pictures, "one of the two formats")
		})
	}
	t.Run("keys", func(t *testing.T) {
		acted(t, func() {
			require.NoError(t, b.Eval("document.getElementById('hold').focus()", nil))
			require.NoError(t, b.Press("ArrowRight", 39))
		})
		assert.Contains(t, look(t).Address, "hold=2500")
		acted(t, func() {
			require.NoError(t, b.Eval("document.getElementById('map').focus()", nil))
			require.NoError(t, b.Press("ArrowLeft", 37))
		})
		assert.Contains(t, look(t).Address, "skew=8000")
	})
	t.Run("a link", func(t *testing.T) {
		acted(t, func() {
			require.NoError(t, b.Eval("location.hash = '#scheme=modern&skew=9000&hold=2000&lease=10000&lang=zh'", nil))
		})
		s := look(t)
		assert.Equal(t, "modern", s.Scheme)
		assert.Equal(t, "zh", s.Language)
		assert.Contains(t, s.Said, "从未出现两个持有者")
		assert.NotContains(t, s.Said, "Never", "one language at a time")
		assert.Contains(t, s.Scenario, "expect overlaps = 0")
		assert.Zero(t, s.Broken, "tokens do not look at clocks, and are renewed")
	})
	t.Run("settings that make no fleet", func(t *testing.T) {
		acted(t, func() {
			require.NoError(t, b.Eval("location.hash = '#scheme=bridge&lease=2000&poll=9999999&clients=x&lang=en'", nil))
		})
		s := look(t)
		assert.Contains(t, s.Address, "clients=4", "what is no setting is left as it was")
		assert.NotEmpty(t, s.Said)
	})
}
