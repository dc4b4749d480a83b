package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// A heat map has the skew from left to right and the lease, or the hold time, from top to bottom. Each
// broken cell is a link to a run; the line is where the closed form says that the scheme breaks.
const (
	cellWidth  = 20
	cellHeight = 17
	mapLeft    = 62
	mapTop     = 8
	halfLabel  = 106 // half of the label below, with room to spare
)

// heatMap is one map of one scheme.
type heatMap struct {
	strings.Builder
	skews, rows []time.Duration
	cells       [][]*sim.Outcome // by row, then skew
}

// draw writes the map; link names the run of a cell, empty for none.
func (h *heatMap) draw(label string, link func(row int, o *sim.Outcome) string) string {
	middle := mapLeft + max(len(h.skews)*cellWidth/2, halfLabel-mapLeft)
	width := max(mapLeft+len(h.skews)*cellWidth+8, middle+halfLabel)
	height := mapTop + len(h.rows)*cellHeight + 40
	fmt.Fprintf(h, `<svg class="map" viewBox="0 0 %d %d" width="%d" role="group" aria-label="%s">`, width, height, width, label)
	fmt.Fprintf(h, `<rect class="k0" x="%d" y="%d" width="%d" height="%d"/>`, mapLeft, mapTop, len(h.skews)*cellWidth-1, len(h.rows)*cellHeight-1)
	h.grid()
	for r, row := range h.rows {
		y := mapTop + r*cellHeight
		fmt.Fprintf(h, `<text class="rl" x="%d" y="%d">%v</text>`, mapLeft-6, y+13, row)
		for s := range h.skews {
			h.cell(h.cells[r][s], mapLeft+s*cellWidth, y, link(r, h.cells[r][s]))
		}
	}
	h.boundary()
	for s, skew := range h.skews {
		if s%4 == 0 || skew == 0 {
			fmt.Fprintf(h, `<text class="sl" x="%d" y="%d">%s</text>`, mapLeft+s*cellWidth+cellWidth/2, height-24, signedSeconds(skew))
		}
	}
	fmt.Fprintf(h, `<text class="sl" x="%d" y="%d">one clock ahead or behind by</text></svg>`, middle, height-6)
	return h.String()
}

// grid rules the map, so that only the broken cells need an element each.
func (h *heatMap) grid() {
	h.WriteString(`<path class="gd" d="`)
	for r := 1; r < len(h.rows); r++ {
		fmt.Fprintf(h, "M%d %dh%d", mapLeft, mapTop+r*cellHeight, len(h.skews)*cellWidth)
	}
	for s := 1; s < len(h.skews); s++ {
		fmt.Fprintf(h, "M%d %dv%d", mapLeft+s*cellWidth, mapTop, len(h.rows)*cellHeight)
	}
	h.WriteString(`"/>`)
}

func (h *heatMap) cell(o *sim.Outcome, x, y int, link string) {
	if o.Broken == 0 {
		return
	}
	rect := fmt.Sprintf(`<rect class="k%d" x="%d" y="%d"/>`, 1+3*o.Broken/max(o.Runs, 1), x, y)
	if link == "" {
		h.WriteString(rect)
		return
	}
	fmt.Fprintf(h, `<a href="#%s" aria-label="%s">%s</a>`, link, signedSeconds(o.Skew), rect)
}

// boundary draws the edges between cells that are predicted to break and to hold.
func (h *heatMap) boundary() {
	breaks := func(r, s int) bool { return h.cells[r][s].Predict() == sim.Breaks }
	var path strings.Builder
	for r := range h.rows {
		for s := range h.skews {
			x, y := mapLeft+s*cellWidth, mapTop+r*cellHeight
			if s > 0 && breaks(r, s) != breaks(r, s-1) {
				fmt.Fprintf(&path, "M%d %dv%d", x, y, cellHeight)
			}
			if r > 0 && breaks(r, s) != breaks(r-1, s) {
				fmt.Fprintf(&path, "M%d %dh%d", x, y, cellWidth)
			}
		}
	}
	if path.Len() > 0 {
		fmt.Fprintf(h, `<path class="bd" d="%s"/>`, path.String())
	}
}

func signedSeconds(d time.Duration) string {
	if d > 0 {
		return "+" + d.String()
	}
	return strings.Replace(d.String(), "-", "−", 1)
}
