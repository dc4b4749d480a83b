package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// TextTimeline draws a run for a terminal: . wants the lock, = believes that it holds it, # two are
// inside, | its lease is over in truth, p paused, x crashed.
func TextTimeline(t *Timeline, columns int) string {
	name := 8
	for i := range t.Lanes {
		name = max(name, len(t.Lanes[i].Name))
	}
	width := max(columns-name-2, 20)
	at := func(d time.Duration) int {
		return min(max(int(int64(d)*int64(width-1)/int64(max(t.End, 1))), 0), width-1)
	}
	var b strings.Builder
	for i := range t.Lanes {
		lane := &t.Lanes[i]
		line := []byte(strings.Repeat(" ", width))
		paint := func(s Span, c byte) {
			for x := at(s.From); x <= at(s.To); x++ {
				line[x] = c
			}
		}
		for _, s := range lane.Waits {
			paint(s, '.')
		}
		for _, s := range lane.Holds {
			paint(s, '=')
			for _, o := range t.Overlaps {
				if from, to := max(s.From, o.From), min(s.To, o.To); from < to {
					paint(Span{From: from, To: to}, '#')
				}
			}
		}
		for _, s := range lane.Leases {
			if s.To < t.End {
				line[at(s.To)] = '|'
			}
		}
		for _, s := range lane.Pauses {
			paint(Span{From: s.From, To: min(s.To, t.End)}, 'p')
		}
		if lane.Crash > 0 {
			line[at(lane.Crash)] = 'x'
		}
		fmt.Fprintf(&b, "%-*s  %s\n", name, lane.Name, strings.TrimRight(string(line), " "))
		fmt.Fprintf(&b, "%-*s  (%s, %s)\n", name, "", lane.Scheme, clockText(lane))
	}
	b.WriteString(textKey(t, name, width, at))
	end := t.End.Round(time.Millisecond).String()
	fmt.Fprintf(&b, "%-*s  0s%*s\n", name, "", width-2, end)
	b.WriteString(". wants   = believes it holds   # two inside\n| its lease is over   p paused   x crashed\n")
	return b.String()
}

// textKey draws the key: the number of the row of the client whose value stands on it.
func textKey(t *Timeline, name, width int, at func(time.Duration) int) string {
	line := []byte(strings.Repeat(" ", width))
	for _, v := range t.Key {
		letter := byte('?')
		if v.Text == "" {
			letter = '-'
		} else if v.By >= 0 {
			letter = byte('1' + v.By%9)
		}
		for x := at(v.From); x <= at(v.To); x++ {
			line[x] = letter
		}
	}
	return fmt.Sprintf("%-*s  %s\n%-*s  (the row of the client whose value it has, 1 the\n%-*s  first; - no value, ? of nobody in this run)\n",
		name, "the key", strings.TrimRight(string(line), " "), name, "", name, "")
}

// TextMaps draws the heat maps for a terminal: a digit for each cell that broke (9: every run did), a
// dot where none did, and a bar where the closed form draws its boundary.
func (r *Report) TextMaps() string {
	var b strings.Builder
	perScheme := (len(r.Grid.Leases) + len(r.Grid.Holds)) * len(r.Grid.Skews)
	for i, scheme := range r.Grid.Schemes {
		cells := r.Outcomes[i*perScheme : (i+1)*perScheme]
		split := len(r.Grid.Leases) * len(r.Grid.Skews)
		fmt.Fprintf(&b, "\n%s: skew from %v to %v, lease from top to bottom, hold %v\n", scheme, r.Grid.Skews[0], r.Grid.Skews[len(r.Grid.Skews)-1], r.Grid.Hold)
		textMap(&b, r.Grid.Leases, len(r.Grid.Skews), cells[:split])
		fmt.Fprintf(&b, "%s: hold from top to bottom, lease %v\n", scheme, r.Grid.Lease)
		textMap(&b, r.Grid.Holds, len(r.Grid.Skews), cells[split:])
	}
	b.WriteString("\n. no run broke   1-9 some to all runs   | the predicted boundary\n")
	return b.String()
}

func textMap(b *strings.Builder, rows []time.Duration, columns int, cells []sim.Outcome) {
	for r, row := range rows {
		fmt.Fprintf(b, "%8v ", row)
		for c := range columns {
			o := &cells[r*columns+c]
			edge := byte(' ')
			if c > 0 && o.Predict() != cells[r*columns+c-1].Predict() {
				edge = '|'
			}
			mark := byte('.')
			if o.Broken > 0 {
				mark = byte('1' + 8*o.Broken/max(o.Runs, 1))
			}
			b.WriteByte(edge)
			b.WriteByte(mark)
		}
		b.WriteByte('\n')
	}
}
