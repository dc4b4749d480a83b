package report

import (
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// The picture of a run is one SVG: time from left to right, a lane for each client, the key at the
// bottom. Every number in it is a whole pixel, which keeps the file small.
const (
	laneHeight = 58
	keyHeight  = 34
	axisHeight = 24
)

// format is the shape of a picture: one for screens, one for phones; the style sheet shows one of them.
type format struct {
	class string
	width int
	left  int // room for the names
	times int // on the axis, about
}

var (
	onScreen = format{"wide", 860, 118, 7}
	onPhone  = format{"phone", 340, 92, 3}
)

// picture draws a timeline.
type picture struct {
	strings.Builder
	format
	t *Timeline
}

func drawTimeline(t *Timeline, id string, f format) string {
	p := &picture{t: t, format: f}
	height := axisHeight + len(t.Lanes)*laneHeight + keyHeight + 8
	fmt.Fprintf(p, `<svg class="run %s" viewBox="0 0 %d %d" role="img" aria-labelledby="%s-%s"><title id="%s-%s">%s</title>`,
		f.class, f.width, height, id, f.class, id, f.class, html.EscapeString(summary(t)))
	p.axis(height)
	for _, o := range t.Overlaps {
		x := p.x(o.From)
		fmt.Fprintf(p, `<rect class="ov" x="%d" y="%d" width="%d" height="%d"/>`, x, axisHeight, max(p.x(o.To)-x, 3), len(t.Lanes)*laneHeight)
	}
	for i := range t.Lanes {
		p.lane(i)
	}
	p.key(axisHeight + len(t.Lanes)*laneHeight)
	p.WriteString("</svg>")
	return p.String()
}

func summary(t *Timeline) string {
	if len(t.Overlaps) == 0 {
		return fmt.Sprintf("%d clients, no overlap", len(t.Lanes))
	}
	return fmt.Sprintf("%d clients, overlap from %v", len(t.Lanes), t.Overlaps[0].From.Round(time.Millisecond))
}

func (p *picture) x(t time.Duration) int {
	share := float64(t) / float64(max(p.t.End, 1))
	return p.left + int(min(max(share, 0), 1)*float64(p.width-p.left-12)+0.5)
}

// axis draws a handful of round times.
func (p *picture) axis(height int) {
	step := roundStep(p.t.End / time.Duration(p.times))
	for t := time.Duration(0); t <= p.t.End; t += step {
		x := p.x(t)
		fmt.Fprintf(p, `<path class="gr" d="M%d %dV%d"/><text class="ax" x="%d" y="15">%v</text>`, x, axisHeight-4, height-4, x, t)
	}
}

// roundStep returns the next 1, 2 or 5 times a power of ten.
func roundStep(d time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if n*unit >= d {
				return n * unit
			}
		}
	}
}

// lane draws one client: what it believes as a bar, what its lease truly is as a line under it, and its
// clock's error above.
func (p *picture) lane(i int) {
	lane := &p.t.Lanes[i]
	top := axisHeight + i*laneHeight
	fmt.Fprintf(p, `<text class="nm" x="4" y="%d">%s</text><text class="sc" x="4" y="%d">%s</text>`,
		top+24, html.EscapeString(lane.Name), top+39, clockText(lane))
	fmt.Fprintf(p, `<path class="ln" d="M%d %dH%d"/>`, p.left, top+36, p.width-12)
	p.clockError(lane, top)
	for _, w := range lane.Waits {
		fmt.Fprintf(p, `<rect class="wt" x="%d" y="%d" width="%d" height="6"/>`, p.x(w.From), top+33, max(p.x(w.To)-p.x(w.From), 1))
	}
	for _, h := range lane.Holds {
		fmt.Fprintf(p, `<rect class="hd c%d" x="%d" y="%d" width="%d" height="18" rx="2"/>`, i%6, p.x(h.From), top+27, max(p.x(h.To)-p.x(h.From), 2))
	}
	for _, l := range lane.Leases {
		to := min(l.To, p.t.End)
		fmt.Fprintf(p, `<path class="ls" d="M%d %dH%d"/>`, p.x(l.From), top+50, max(p.x(to), p.x(l.From)+1))
		if l.To <= p.t.End {
			fmt.Fprintf(p, `<path class="le" d="M%d %dv8"/>`, p.x(to), top+46)
		}
	}
	for _, s := range lane.Pauses {
		fmt.Fprintf(p, `<rect class="ps" x="%d" y="%d" width="%d" height="18"/>`, p.x(s.From), top+27, max(p.x(s.To)-p.x(s.From), 2))
	}
	if lane.Crash > 0 {
		fmt.Fprintf(p, `<text class="cr" x="%d" y="%d">✕</text>`, p.x(lane.Crash)-5, top+41)
	}
}

// clockError draws the error of the client's clock along the lane: up is ahead.
func (p *picture) clockError(lane *Lane, top int) {
	largest := time.Duration(1)
	for _, e := range lane.Errors {
		largest = max(largest, e.By.Abs())
	}
	if largest == 1 {
		return
	}
	y := func(by time.Duration) int { return top + 14 - int(9*float64(by)/float64(largest)) }
	fmt.Fprintf(p, `<path class="ze" d="M%d %dH%d"/><path class="er" d="M%d %d`, p.left, y(0), p.width-12, p.left, y(lane.Errors[0].By))
	for _, e := range lane.Errors[1:] {
		fmt.Fprintf(p, "H%dV%d", p.x(e.At), y(e.By))
	}
	fmt.Fprintf(p, `H%d"/>`, p.width-12)
}

func clockText(lane *Lane) string {
	first, last := lane.Errors[0].By, lane.Errors[len(lane.Errors)-1].By
	switch {
	case first == 0 && last == 0:
		return "clock true"
	case first.Round(time.Millisecond) == last.Round(time.Millisecond):
		return "clock " + Ahead(first)
	default:
		return "clock then " + Ahead(last)
	}
}

// key draws what stands on the key.
func (p *picture) key(top int) {
	fmt.Fprintf(p, `<text class="nm" x="4" y="%d">the key</text>`, top+22)
	for _, v := range p.t.Key {
		x, w := p.x(v.From), p.x(v.To)-p.x(v.From)
		if v.Text == "" || w < 1 {
			continue
		}
		class := "old"
		if v.By >= 0 {
			class = fmt.Sprintf("c%d", v.By%6)
		}
		fmt.Fprintf(p, `<rect class="vl %s" x="%d" y="%d" width="%d" height="20"><title>%s</title></rect>`, class, x, top+8, w, html.EscapeString(v.Text))
		if shown := fit(v.Text, w); shown != "" {
			fmt.Fprintf(p, `<text class="vt" x="%d" y="%d">%s</text>`, x+4, top+22, html.EscapeString(shown))
		}
	}
}

// fit cuts a value's beginning off until it fits: the end of a number is what differs.
func fit(text string, width int) string {
	room := (width - 8) / 7
	switch {
	case room >= len(text):
		return text
	case room >= 5:
		return "…" + text[len(text)-room+1:]
	default:
		return ""
	}
}

// Pictures draws a run twice: for a screen and for a phone, without the style sheet that Style returns.
func Pictures(f *sim.Fleet, records []sim.Record) (wide, phone string) {
	t := Draw(f, records)
	return drawTimeline(t, "run", onScreen), drawTimeline(t, "run", onPhone)
}
