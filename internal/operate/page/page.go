// Package page is what the pages and reports of lockmigrate look like: one style sheet for light and dark, screen and
// phone, and one way to draw a chart. Nothing in it is loaded from a network.
//
// A table of class "stack" becomes a list on a phone: its head goes, and each cell shows its data-label.
package page

import (
	_ "embed"
	"html/template"
	"regexp"
	"strings"
	"time"
)

//go:embed style.css
var style string

//go:embed parts.css
var partsStyle string

//go:embed parts.html
var parts string

//go:embed uplot/uPlot.min.css
var plotStyle string

//go:embed uplot/uPlot.iife.min.js
var plot string

//go:embed page.js
var script string

// Style returns the sheet of every page. It defines the colours as variables: --bg, --card, --ink, --dim, --line,
// --link, --good, --warn, --bad, and one for each kind of client: --legacy, --member, --bridge, --sidecar, --modern, --redisson, --unknown.
func Style() template.CSS { return template.CSS(style) }

// Charts returns the library that draws charts, its sheet, and the functions of page.js: lockmigrateChart(box, what)
// and localTime(date).
func Charts() (template.CSS, template.JS) {
	return template.CSS(plotStyle), template.JS(plot + "\n" + script)
}

// empty is what a duration may do without: 10m0s is 10m.
var empty = regexp.MustCompile(`([hm])0[ms](?:0s)?$`)

// Report is the template of a page that is one file. Beside the functions that it is given, it knows the template "head", which begins a
// page of a title. Its function "class" is the kind of client that colours a stage's bar, and "span" writes
// a duration.
func Report(layout string, funcs template.FuncMap) (*template.Template, error) {
	t, err := template.New("report").Funcs(funcs).Funcs(template.FuncMap{
		"class": func(stage string) string { kind, _, _ := strings.Cut(stage, ","); return kind },
		"span":  func(d time.Duration) string { return empty.ReplaceAllString(d.String(), "$1") },
	}).Parse(parts)
	if err != nil {
		return nil, err
	}
	return t.Parse(layout)
}

// ReportStyle is the sheet of a Report.
func ReportStyle() template.CSS { return Style() + template.CSS(partsStyle) }
