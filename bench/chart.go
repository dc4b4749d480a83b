package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// bars draws one figure of a table as horizontal bars, in greys and a blue that read on light and on
// dark pages. The thin line is the spread over the rounds.
func (t table) bars(r Results) string {
	f := t.figures[t.chart-1]
	type bar struct {
		name string
		value
	}
	var all []bar
	largest, smallest := 0.0, math.Inf(1)
	for _, c := range contestants {
		if v := r.over(t.scenario, c.name, f); v.n > 0 && !math.IsInf(v.mid, 0) {
			all = append(all, bar{c.name, v})
			largest = max(largest, v.high)
			if v.low > 0 {
				smallest = min(smallest, v.low)
			}
		}
	}
	const left, width, row = 150.0, 430.0, 24.0
	at := func(v float64) float64 {
		if !t.log {
			return width * v / largest
		}
		low := math.Floor(math.Log10(smallest)) - 0.2
		if v <= 0 {
			return 0
		}
		return width * (math.Log10(v) - low) / (math.Log10(largest) - low)
	}
	scale := ""
	if t.log {
		scale = ", logarithmic"
	}
	var b strings.Builder
	height := 40 + row*float64(len(all))
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 %.0f" font-family="sans-serif" font-size="13" fill="#7d8590">`+"\n", height)
	fmt.Fprintf(&b, `<text x="%.0f" y="18">%s%s</text>`+"\n", left, html.EscapeString(f.what), scale)
	for i, bar := range all {
		y, colour := 30+row*float64(i), "#8b949e"
		if ours(bar.name) {
			colour = "#2f81f7"
		}
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, left-8, y+14, html.EscapeString(bar.name))
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.1f" width="%.1f" height="16" rx="2" fill="%s"/>`, left, y+2, max(at(bar.mid), 1), colour)
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#57606a" stroke-width="2"/>`, left+at(bar.low), y+10, left+at(bar.high))
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`+"\n", left+max(at(bar.mid), at(bar.high))+6, y+14, number(bar.mid, f.digits))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// ours are the locks of this project.
func ours(name string) bool {
	switch name {
	case "modern", "modern-plain", "modern-unfair", "compat", "legacy", "raw-mux":
		return true
	}
	return false
}
