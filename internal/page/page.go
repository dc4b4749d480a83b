// Package page is what the pages and reports of lockmigrate look like: one style sheet for light and dark, screen and
// phone, and one way to draw a chart. Nothing in it is loaded from a network.
//
// A table of class "stack" becomes a list on a phone: its head goes, and each cell shows its data-label.
package page

import (
	_ "embed"
	"html/template"
)

//go:embed style.css
var style string

//go:embed uplot/uPlot.min.css
var plotStyle string

//go:embed uplot/uPlot.iife.min.js
var plot string

//go:embed page.js
var script string

// Style returns the sheet of every page. It defines the colours as variables: --bg, --card, --ink, --dim, --line,
// --link, --good, --warn, --bad, and one for each kind of client: --legacy, --bridge, --modern, --redisson, --unknown.
func Style() template.CSS { return template.CSS(style) }

// Charts returns the library that draws charts, its sheet, and the functions of page.js: lockmigrateChart(box, what)
// and localTime(date).
func Charts() (template.CSS, template.JS) {
	return template.CSS(plotStyle), template.JS(plot + "\n" + script)
}
