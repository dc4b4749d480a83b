package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// observeOutput prints what an observation found: a live table on a terminal, one report in a pipe.
type observeOutput struct {
	env   *environment
	flags observeFlags
	lines int // of the live table that stand on the screen
}

// whileRunning shows the live table until the observation has ended, or a countdown where the table has no place.
func (o *observeOutput) whileRunning(seen interface{ Report() observe.Report }, ended <-chan error, window time.Duration) error {
	live := o.env.isTerminal(o.env.stdout) && !o.env.global.json
	status := o.env.status()
	if live {
		status = newStatusLine(nil, nil) // rows stream on the same screen
	}
	defer status.Clear()
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			o.erase()
			return err
		case <-tick.C:
			left := countdown("observe", time.Since(began), window)
			if live {
				asked := time.Now()
				o.redraw(left + "\n" + o.table(seen.Report(), 15, o.env.screen()-1))
				tick.Reset(max(500*time.Millisecond, 10*time.Since(asked))) // a report holds up who takes the traffic in
			} else {
				status.Update("%s", left)
			}
		}
	}
}

func (o *observeOutput) erase() {
	if o.lines > 0 {
		fmt.Fprintf(o.env.stdout, "\x1b[%dA\x1b[J", o.lines)
		o.lines = 0
	}
}

func (o *observeOutput) redraw(text string) {
	o.erase()
	width := o.env.width(o.env.stdout)
	for line := range strings.Lines(text) {
		fmt.Fprintln(o.env.stdout, cut(strings.TrimRight(line, "\n"), width-1))
		o.lines++
	}
}

// findings are what an observation found, and what --json prints.
type findings struct {
	observe.Report
	Cost    observe.Cost `json:"cost"`
	Stopped string       `json:"stopped,omitempty"` // why it ended before its time
	Holes   []string     `json:"holes,omitempty"`   // what was not seen, because of a failover
	Next    string       `json:"next"`              // what to run

	profile profile.Profile
}

// verdict makes a failure of an early end, and of what was not seen.
func (f findings) verdict(err error) error {
	var stopped *observe.Stopped
	switch {
	case errors.As(err, &stopped):
		return inconclusiveError("what is printed is what was seen until then; see --max-load", "stopped: %w", err)
	case err == nil && len(f.Holes) > 0:
		return inconclusiveError("what is printed is what was seen", "not all was seen: %s", strings.Join(f.Holes, "; "))
	}
	return err
}

// final prints the report, and writes the profile.
func (o *observeOutput) final(f findings, err error) error {
	if err != nil {
		f.Stopped = err.Error()
	}
	f.Next = nextOf(o.flags.match)
	measured := f.profile
	measured.Match = stages.EscapeAll(o.flags.match)
	measured.NotSeen = append(measured.NotSeen, f.notSeen()...)
	if o.flags.profile != "" {
		if err := writeFile(o.flags.profile, measured.Write); err != nil {
			return err
		}
	}
	if o.env.global.json {
		return o.env.encode(pretty{f})
	}
	r, cost := f.Report, f.Cost
	var b strings.Builder
	b.WriteString(o.table(r, 1000, o.env.screen()))
	details(&b, r)
	fmt.Fprintf(&b, "\n%.1f s, %s commands, %s of them on locks\n", r.WindowSeconds, thousands(r.Commands), thousands(r.LockCommands))
	if o.flags.from+o.flags.pcap == "" && len(o.flags.listen) == 0 { // MONITOR
		held := fmt.Sprintf("held at most %s KiB of it", thousands(cost.BufferPeak>>10))
		if cost.BufferUnknown != "" {
			held = "held nobody knows how much of it"
		}
		load := fmt.Sprintf("its main thread used %.0f %% of a core, %.0f %% before", 100*cost.CPUDuring, 100*cost.CPUBefore)
		if cost.LoadUnknown != "" {
			load = "its load is not known"
		}
		fmt.Fprintf(&b, "cost: the server sent %.1f MiB, %s; %s; %s reads of ours\n", float64(cost.Bytes)/(1<<20), held, load, thousands(cost.ReadsOfOurs))
		each(&b, "NO LIMIT ON THE SERVER'S LOAD WAS KEPT", []string{cost.LoadUnknown})
		each(&b, "NO LIMIT ON THE SERVER'S OUTPUT BUFFER WAS KEPT", []string{cost.BufferUnknown})
	}
	if !r.Complete {
		b.WriteString("the state of some keys at the start is not known: what happened on them before their first SETNX or GETSET was settled is left out\n")
	}
	each(&b, "NOT ALL WAS READ", r.Refused)
	each(&b, "NOT ALL WAS SEEN", measured.NotSeen)
	drifts(&b, measured)
	if keys, clients := measured.Unsure(); keys > 0 {
		fmt.Fprintf(&b, "acquired only once: %s, by %s; who else locks them is not known; observe for longer\n", counted(int64(keys), "key"), counted(int64(clients), "client"))
	}
	if o.flags.profile != "" {
		file := quoted(o.flags.profile)
		fmt.Fprintf(&b, "the fleet is written to %s; its double holds to come: lockmigrate forecast %s\n", file, file)
	}
	fmt.Fprintf(&b, "next: %s\n", f.Next)
	return o.env.show(b.String())
}

// each writes a line for each text of a list that is not empty. A server may have written them.
func each(b *strings.Builder, head string, texts []string) {
	for _, text := range texts {
		if text != "" {
			fmt.Fprintf(b, "%s: %s\n", head, safe(text))
		}
	}
}

// notSeen says why traffic may be missing.
func (f findings) notSeen() (why []string) {
	if f.Stopped != "" {
		why = append(why, "all of the window: "+f.Stopped)
	}
	for _, h := range f.Holes {
		why = append(why, "all commands: "+h)
	}
	if f.Garbled > 0 {
		why = append(why, counted(f.Garbled, "line")+" that could not be read")
	}
	if f.Crowded > 0 {
		why = append(why, counted(f.Crowded, "command")+" of too many connections; narrow it with --match")
	}
	return why
}

// table is one row a client, for a screen of a width.
func (o *observeOutput) table(r observe.Report, most, width int) string {
	if len(r.Clients) == 0 {
		return "no client used a lock\n"
	}
	ink := o.env.ink()
	t := newTable("CLIENT|wrap", "KIND", "DIALECT", "LEASE|right", "POLL|right spare", "SKEW|right", "ACQUIRED|right", "RELEASED|right spare",
		"HOLD P50|right spare", "WAIT P50|right spare", "KEYS|wrap spare")
	for _, c := range r.Clients[:min(most, len(r.Clients))] {
		id := quoted(c.Addr)
		if c.Name != "" && c.Name != c.Addr {
			id += " " + quoted(c.Name)
		}
		if c.Sidecar != "" && c.Addr != "sidecar:"+c.Sidecar {
			id += " sidecar:" + quoted(c.Sidecar)
		}
		if c.Connections > 1 {
			id += fmt.Sprintf(" (%d)", c.Connections)
		}
		var keys []string
		for _, k := range c.Keys[:min(3, len(c.Keys))] {
			keys = append(keys, quoted(k))
		}
		if others := slices.DeleteFunc(slices.Clone(c.Databases), func(db int) bool { return db == 0 }); len(others) > 0 {
			keys = append(keys, "in database "+strings.Trim(fmt.Sprint(c.Databases), "[]"))
		}
		t.Row(id, c.Kind, dialectText(c), leaseText(c), known(c.PollMS), skewText(c), fmt.Sprint(c.Acquired), fmt.Sprint(c.Released), span(c.HoldP50MS), span(c.WaitP50MS), strings.Join(keys, " "))
	}
	text := t.Render(width, ink)
	if more := len(r.Clients) - most; more > 0 {
		text += fmt.Sprintf("... and %d more\n", more)
	}
	return text + fmt.Sprintf("hazards: %s; overlaps: %s\n", r.HazardText(), ink.Count(r.OverlapCount))
}

// dialectText is a dialect, marked where one trait decides between two.
func dialectText(c observe.Row) string {
	if c.DialectOr != "" {
		return c.Dialect + "?"
	}
	return c.Dialect
}

// leaseText is a lease, or from which to which it varies. One that is in doubt is marked.
func leaseText(c observe.Row) string {
	switch {
	case c.LeaseVaries:
		return span(c.LeaseLeastMS) + " to " + span(c.LeaseMostMS)
	case c.LeaseDoubt != "":
		return known(c.LeaseMS) + "?"
	}
	return known(c.LeaseMS)
}

// skewText is an offset with its error bar. It is marked where the lease that it rests on is in doubt.
func skewText(c observe.Row) string {
	if c.SkewMS == nil {
		return "-"
	}
	mark, off := "", *c.SkewErrorMS
	if c.LeaseDoubt != "" {
		mark = "?"
	} else if !c.LeaseVaries {
		off += (c.LeaseMostMS - c.LeaseLeastMS) / 2
	}
	return fmt.Sprintf("%+.0f ms ±%.0f%s", *c.SkewMS, math.Max(1, off), mark)
}

// What the text shows of each list; --json has more.
const (
	mostOverlaps = 5
	mostEvents   = 15
)

func details(b *strings.Builder, r observe.Report) {
	for _, v := range r.Overlaps[:min(mostOverlaps, len(r.Overlaps))] {
		fmt.Fprintf(b, "\nOVERLAP on %s for %s, %s\n  %s %s acquired %s\n  %s %s acquired %s\n", keyText(v.DB, v.Key), span(v.MS), v.Cause,
			whoText(&v.First.Who), v.First.Dialect, clock(v.First.Acquired), whoText(&v.Second.Who), v.Second.Dialect, clock(v.Second.Acquired))
	}
	more(b, int(r.OverlapCount)-mostOverlaps, "overlaps")
	if len(r.Events) > 0 {
		b.WriteString("\n")
	}
	for _, e := range r.Events[:min(mostEvents, len(r.Events))] {
		b.WriteString(eventLine(e) + "\n")
	}
	more(b, len(r.Events)-mostEvents, "events")
	pauses(b, r)
	if slices.ContainsFunc(r.Events, func(e observe.EventRow) bool { return strings.HasSuffix(e.Note, observe.OnePool) }) {
		b.WriteString("\na pool that locks over one connection and deletes over another looks like stale deletes and overlaps: look again with --group host, or name\n")
	}
	doubts(b, r)
}

// mostDoubts is how many clients the text names of which something is in doubt.
const mostDoubts = 5

// doubts says what a ? stands for, and whose leases vary.
func doubts(b *strings.Builder, r observe.Report) {
	n := 0
	for _, c := range r.Clients {
		who := quoted(c.Addr)
		var said []string
		if c.LeaseVaries {
			said = append(said, fmt.Sprintf("leases of %s vary from %s to %s: the record takes the shortest", who, span(c.LeaseLeastMS), span(c.LeaseMostMS)))
		}
		if c.LeaseDoubt != "" {
			said = append(said, fmt.Sprintf("? lease %s of %s is not sure: %s. Say --lease to be sure", known(c.LeaseMS), who, c.LeaseDoubt))
		}
		if c.DialectOr != "" {
			said = append(said, fmt.Sprintf("? dialect of %s is %s or %s: %s", who, c.Dialect, c.DialectOr, c.DialectDoubt))
		}
		for _, text := range said {
			if n++; n <= mostDoubts {
				b.WriteString("\n" + text + "\n")
			}
		}
	}
	more(b, n-mostDoubts, "of these")
}

// pauses tells the longest time from a GET to the GETSET or SET that followed from it, and whose it was.
func pauses(b *strings.Builder, r observe.Report) {
	var seen int64
	var worst observe.Row
	for _, c := range r.Clients {
		seen += c.Pauses
		if c.PauseMaxMS > worst.PauseMaxMS {
			worst = c
		}
	}
	if seen > 0 {
		fmt.Fprintf(b, "\nfrom GET to GETSET: at most %s in %s takeovers, by %s; the record's command delay must be longer\n",
			span(worst.PauseMaxMS), thousands(seen), quoted(worst.Addr))
	}
}

// mostDrifts is how many clocks the text names.
const mostDrifts = 20

// drifts tells how fast each clock runs, where that is known well enough to say that it does.
func drifts(b *strings.Builder, p profile.Profile) {
	shown := 0
	for _, c := range p.Clients {
		if ppm, off, known := c.Drift(); known && max(ppm, -ppm) > off && shown < mostDrifts {
			shown++
			fmt.Fprintf(b, "clock of %s: %+.0f ms, and %+.1f ms more each day, give or take %.1f\n", quoted(c.Name), c.SkewMS, 86.4*ppm, 86.4*off)
		}
	}
}

// more says that a list goes on.
func more(b *strings.Builder, n int, what string) {
	if n > 0 {
		fmt.Fprintf(b, "... and %s more %s: see --json\n", thousands(int64(n)), what)
	}
}

func eventLine(e observe.EventRow) string {
	line := fmt.Sprintf("%s  %-14s  %s by %s", clock(e.At), e.Hazard, keyText(e.DB, e.Key), whoText(e.By))
	if e.Victim != nil {
		line += " against " + whoText(e.Victim)
	}
	if e.Note != "" {
		line += ": " + e.Note
	}
	return line
}

// keyText is a key, with its database where that is another than the usual one.
func keyText(db int, key string) string {
	if db == 0 {
		return quoted(key)
	}
	return fmt.Sprintf("%s in database %d", quoted(key), db)
}

func whoText(w *observe.Who) string {
	switch {
	case w == nil:
		return "an unknown client"
	case w.Name != "":
		return w.Addr + " " + quoted(w.Name)
	default:
		return w.Addr
	}
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000000") }

// known writes milliseconds, 0 for what is not known.
func known(v float64) string {
	if v == 0 {
		return "-"
	}
	return span(v)
}

// span writes milliseconds in the unit that reads best.
func span(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 1:
		return fmt.Sprintf("%.1f ms", v)
	case v < 1000:
		return fmt.Sprintf("%.0f ms", v)
	default:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v/1000), "0"), ".") + " s"
	}
}
