//go:build !js

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

const ready = "document.body.dataset.first && document.getElementById('map').dataset.full"

// reader is who looks at the page.
type reader struct{ *redistest.Chromium }

// seen is what a reader sees.
type seen struct {
	Said, Scheme, Scenario, Address, Language                 string
	Requests, Wide, Here, Broken, Pictures, Steps, Clash, Cut int
	Boundary                                                  bool
}

func (p reader) look(t *testing.T) (s seen) {
	t.Helper()
	p.Eval(t, `(async function () {
  var box = function (e) { return e.getBoundingClientRect(); }, all = function (what) { return [].filter.call(document.querySelectorAll(what), function (e) { return box(e).height > 0; }); };
  var meet = function (labels) { return labels.reduce(function (n, a, i) { return n + labels.slice(i + 1).filter(function (b) {
    return box(a).left < box(b).right && box(b).left < box(a).right && box(a).top + 2 < box(b).bottom && box(b).top + 2 < box(a).bottom; }).length; }, 0); };
  var svg = all("svg"), out = svg.reduce(function (n, e) { return n + all("#" + (e.id || "picture") + " text").filter(function (t) { return box(t).left < box(e).left - 1 || box(t).right > box(e).right + 1 || box(t).bottom > box(e).bottom + 1; }).length; }, 0);
  return { Said: document.getElementById("said").innerText, Scheme: document.getElementById("scheme").value, Address: location.hash, Language: document.documentElement.lang,
    Scenario: document.getElementById("file").href ? await (await fetch(document.getElementById("file").href)).text() : "",
    Requests: performance.getEntriesByType("resource").filter(function (r) { return !r.name.startsWith("blob:"); }).length,
    Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, Here: document.querySelectorAll("#map .here").length,
    Broken: document.querySelectorAll("#map .k3").length, Pictures: all("#picture svg").length, Steps: document.querySelectorAll("#steps tr").length,
    Clash: meet(all("#picture .ax, #picture .nm, #picture .sc")) + meet(all("#map text")), Cut: out,
    Boundary: !!document.querySelector("#map .bd").getAttribute("d") };
})()`, &s)
	return s
}

// acted acts, and waits until the page has played again and filled its map.
func (p reader) acted(t *testing.T, what string) seen {
	t.Helper()
	var before string
	p.Eval(t, "document.body.dataset.played", &before)
	p.Eval(t, what, nil)
	return p.settled(t, before)
}

// press presses a key on an element.
func (p reader) press(t *testing.T, id, key string, code int) seen {
	t.Helper()
	var before string
	p.Eval(t, "document.getElementById('"+id+"').focus(), document.body.dataset.played", &before)
	p.Press(t, key, code)
	return p.settled(t, before)
}

func (p reader) settled(t *testing.T, before string) seen {
	t.Helper()
	p.Eval(t, `new Promise(function (done) {
  (function look() { document.body.dataset.played !== "`+before+`" && document.getElementById("map").dataset.full ? done() : setTimeout(look, 10); })();
})`, nil)
	return p.look(t)
}

// TestInABrowser opens the page on a screen and on a phone, light and dark, and moves over it by keys and links. With a folder in
// LOCKMIGRATE_SCREENSHOTS the screens are kept there, to be looked at.
func TestInABrowser(t *testing.T) {
	p, file := reader{redistest.NewChromium(t)}, filepath.Join(t.TempDir(), "playground.html")
	require.NoError(t, write(file))
	size, err := os.Stat(file)
	require.NoError(t, err)
	require.Less(t, size.Size(), int64(4<<20))
	for view, v := range map[string]redistest.View{
		"1280-light": {Width: 1280, Height: 900}, "1280-dark": {Width: 1280, Height: 900, Dark: true, Still: true}, "800": {Width: 800, Height: 900},
		"390-light": {Width: 390, Height: 844}, "390-dark": {Width: 390, Height: 844, Dark: true},
	} {
		t.Run(view, func(t *testing.T) {
			p.Open(t, "file://"+file+"?"+view+"#scheme=legacy&skew=9000&hold=2000&lang=en", v, ready)
			if folder := os.Getenv("LOCKMIGRATE_SCREENSHOTS"); folder != "" {
				p.Eval(t, "document.querySelector('details').open = location.search === '?1280-light' || location.search === '?390-dark'", nil)
				p.Picture(t, filepath.Join(folder, "playground-"+view+".png"), 0)
			}
			s := p.look(t)
			assert.Contains(t, s.Said, "comes in beside")
			assert.Contains(t, s.Said, "the clocks disagree")
			assert.Contains(t, s.Scenario, "expect overlaps = 1")
			assert.Greater(t, s.Steps, 5)
			assert.Zero(t, s.Requests, "nothing is loaded")
			assert.Zero(t, s.Wide, "the page does not scroll sideways")
			assert.Equal(t, 1, s.Here)
			assert.Greater(t, s.Broken, 50, "cells of which each run breaks")
			assert.True(t, s.Boundary, "the closed form")
			assert.Equal(t, 1, s.Pictures)
			assert.Zero(t, s.Clash, "no label covers another")
			assert.Zero(t, s.Cut, "no label is cut")
		})
	}
	t.Run("keys", func(t *testing.T) {
		p.Open(t, "file://"+file+"#scheme=legacy&skew=9000&hold=2000&lang=en", redistest.View{Width: 1280, Height: 900}, ready)
		assert.Contains(t, p.press(t, "map", "ArrowLeft", 37).Address, "skew=8000")
		assert.Contains(t, p.press(t, "map", "ArrowDown", 40).Address, "hold=3000")
		assert.Contains(t, p.press(t, "hold", "ArrowRight", 39).Address, "hold=3500", "a slider")
		s := p.acted(t, "document.querySelector('#map [data-skew=\"9000\"][data-row=\"2000\"]').dispatchEvent(new MouseEvent('click', { bubbles: true }))")
		assert.Contains(t, s.Address, "skew=9000")
		assert.Contains(t, s.Said, "comes in beside")
	})
	t.Run("a link", func(t *testing.T) {
		s := p.acted(t, "location.hash = '#scheme=modern&skew=9000&hold=2000&lease=10000&lang=zh'")
		assert.Equal(t, "modern", s.Scheme)
		assert.Equal(t, "zh", s.Language)
		assert.Contains(t, s.Said, "从未出现两个持有者")
		assert.NotContains(t, s.Said, "Never", "one language at a time")
		assert.Zero(t, s.Broken, "tokens do not look at clocks, and are renewed")
		s = p.acted(t, "location.hash = '#scheme=legacy&skew=9000&hold=2000&lease=10000&lang=zh'")
		assert.Contains(t, s.Said, "而时钟并不一致")
		s = p.acted(t, "document.getElementById('language').click()")
		assert.Equal(t, "en", s.Language)
		s = p.acted(t, "location.hash = '#scheme=bridge&lease=2000&poll=9999999&clients=x&lang=en'")
		assert.Contains(t, s.Address, "clients=4", "what is no setting is left as it was")
		assert.NotEmpty(t, s.Said)
	})
}
