package verify

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	stream "github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// Capture is what tcpdump showed of one server over the window, in place of MONITOR. It shows each command of each connection that it
// has, and nothing of what scripts do. That it has each connection follows from the server: from CLIENT LIST, and from the number
// of connections that it accepted.
type Capture struct {
	Marks    int       `json:"marks"` // of this run's first and last look: both are in it
	From     time.Time `json:"from"`  // the first packet, on the clock of the host that captured
	To       time.Time `json:"to"`
	Packets  int64     `json:"packets"`
	Accepted int64     `json:"accepted"` // connections that the server accepted between the first look and the last
	Opened   int64     `json:"opened"`   // of them, those that are surely in the capture
	NotSeen  []string  `json:"not_seen,omitempty"`
	Missing  []string  `json:"missing,omitempty"` // connections that CLIENT LIST has and the capture has not
	Listed   int       `json:"listed"`            // connections of CLIENT LIST, at the start and at the end
	Ours     int64     `json:"scripts_of_ours"`
	Foreign  int64     `json:"scripts_of_others"`
}

// mostSets is how many SET one call of a script of ours may send.
const mostSets = 8

// String says what it covers.
func (c Capture) String() string {
	return fmt.Sprintf("%d packets from %s to %s, %d connections opened; %d scripts of this project; %d others, which it cannot look into",
		c.Packets, c.From.Format(time.RFC3339), c.To.Format(time.RFC3339), c.Opened, c.Ours, c.Foreign)
}

// open says why the capture does not show all, empty if it does.
func (c *Capture) open() string {
	switch {
	case c.Marks != 2:
		return "the capture does not show this run's first and last look: it has ended, or it is too far behind"
	case len(c.NotSeen) > 0:
		return "the capture has holes: " + strings.Join(c.NotSeen, "; ")
	case c.Listed == 0:
		return "CLIENT LIST could not be read at the start and at the end: it is not known whose connections the capture has"
	case len(c.Missing) > 0:
		return fmt.Sprintf("%s of CLIENT LIST are not in the capture, such as %s: it is of one client's host, or of one of several interfaces",
			nouns(int64(len(c.Missing)), "connection"), c.Missing[0])
	case c.Accepted != c.Opened:
		return fmt.Sprintf("the server accepted %d connections, and the capture shows %d", c.Accepted, c.Opened)
	}
	return ""
}

// accounts tells why a capture does not account for a command, empty if it does. The numbers must be equal. Only scripts of this
// project may have sent more SET than it shows.
func (c *Capture) accounts(command Command) string {
	name := strings.ToUpper(command.Name)
	switch hidden := command.Run - command.Captured; {
	case hidden == 0:
		return ""
	case hidden < 0:
		return fmt.Sprintf("the capture shows %d %s, and the server counts %d", command.Captured, name, command.Run)
	case c.Foreign > 0:
		return fmt.Sprintf("up to %d %s are not in the capture, and scripts that are not of this project ran: a capture does not show what they do", hidden, name)
	case command.Name != "set" || hidden > mostSets*c.Ours:
		return fmt.Sprintf("up to %d of %d %s are not in the capture", hidden, command.Run, name)
	}
	return ""
}

// wiretap reads a capture as it is written.
type wiretap struct {
	ended   chan struct{}
	err     error          // why it ended
	reading stream.Reading // nil: it could not begin
	marked  chan struct{}  // closed and renewed at each mark
	stopped context.CancelFunc

	mu      sync.Mutex
	traffic traffic
	ran     tally // what has run
	asked   tally // what was asked for, without what was refused
	echoed  int64 // connections before the last ECHO of ours
	marks   map[string]mark
	watch   map[string]bool // addresses of CLIENT LIST at the start: whether a packet of it came
	from    string          // whose ECHO was the last mark
	last    string
}

// tally counts each of Taking, and then connections, scripts of this project, and other scripts.
type tally [taking + 3]int64

const (
	connections = taking + iota
	ourScripts
	otherScripts
)

// mark is what the capture tells of the counts that a look's INFO has read: at least what had its reply before INFO was asked, and at most
// what was asked for before INFO was answered. A connection that was opened before our ECHO was accepted before INFO.
type mark struct {
	least, most tally
	skipped     int64
	seen        bool
}

// hidden bounds what the server counts and the capture has not. That only grows. So it is at least what any look at the start has shown,
// and at most what any look at the end shows: one such look at which nothing is under way makes it exact.
type hidden struct {
	before, after tally
	begun, over   bool
}

// starts takes in a look at the start, and tells whether another one would tell more.
func (h *hidden) starts(counted tally, m mark) (exact bool) {
	exact = true
	for i := range ourScripts {
		if most := counted[i] - m.most[i]; !h.begun || most > h.before[i] {
			h.before[i] = most
		}
		exact = exact && h.before[i] == counted[i]-m.least[i]
	}
	h.begun = true
	return exact
}

// stops takes in a look at the end, and tells whether another one would tell more.
func (h *hidden) stops(counted tally, m mark) (exact bool) {
	exact = true
	for i := range ourScripts {
		if least := counted[i] - m.least[i]; !h.over || least < h.after[i] {
			h.after[i] = least
		}
		exact = exact && (h.after[i] <= h.before[i] || h.after[i] <= counted[i]-m.most[i])
	}
	h.over = true
	return exact
}

// openWire begins to read.
func openWire(ctx context.Context, in io.Reader, port uint16, prefix string, matches func(string) bool, saw func(sighting)) *wiretap {
	w := &wiretap{
		ended: make(chan struct{}), marked: make(chan struct{}), marks: map[string]mark{}, watch: map[string]bool{},
		traffic: traffic{matches: matches, saw: saw, prefix: prefix},
	}
	ctx, w.stopped = context.WithCancel(ctx)
	go func() {
		defer close(w.ended)
		_, err := stream.ReadCapture(ctx, in, port, stream.NewKeys(1000), func(*stream.Command) {}, stream.Wire{
			Lock: &w.mu, Opened: w.open, Asked: w.asks, Ended: w.ends,
			Ready: func(r stream.Reading) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.reading = r
			},
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err = err; err == nil {
			w.err = io.EOF
		}
	}()
	return w
}

func (w *wiretap) open(addr string, joined bool) {
	if _, listed := w.watch[addr]; listed {
		w.watch[addr] = true
	}
	if !joined {
		w.asked[connections]++
	}
}

// placeOf is where a command counts, negative for none.
func placeOf(l *stream.Command) int {
	switch name := strings.ToLower(l.Words[0]); {
	case !runsScript[name]:
		return indexOf(name)
	case len(l.Words) > 1 && takesNothingOld(l.Words[1]):
		return ourScripts
	}
	return otherScripts
}

// asks takes in a request.
func (w *wiretap) asks(l *stream.Command) {
	if _, listed := w.watch[l.Addr]; listed {
		w.watch[l.Addr] = true
	}
	if at := placeOf(l); at >= 0 {
		w.asked[at]++
	}
	switch {
	case l.Words[0] == "INFO" && l.Addr == w.from && w.last != "":
		clear(w.marks)
		m := mark{least: w.ran, skipped: w.reading.SoFar().Skipped}
		m.least[connections] = w.echoed
		w.marks[w.last] = m
	case l.Words[0] == "ECHO" && len(l.Words) == 2 && strings.HasPrefix(l.Words[1], w.traffic.prefix):
		w.from, w.last, w.echoed = l.Addr, l.Words[1], w.asked[connections]
	}
}

// ends takes in the end of a request.
func (w *wiretap) ends(l *stream.Command, failed bool) {
	at := placeOf(l)
	switch {
	case l.Words[0] == "INFO" && l.Addr == w.from && w.last != "":
		if m := w.marks[w.last]; !failed {
			m.seen, m.most = true, w.asked
			w.marks[w.last] = m
		}
		w.last = ""
		close(w.marked)
		w.marked = make(chan struct{})
	case at < 0:
	case failed:
		w.asked[at]--
	default:
		w.ran[at]++
		if at < taking {
			w.traffic.line = *l
			w.traffic.judge(Taking[at], at, len(l.Words) >= stream.MaxWords)
		}
	}
}

// takesNothingOld tells a script of this project that takes no lock the old way.
func takesNothingOld(text string) bool {
	name := scripts.NameOf(text)
	return name != "" && name != scripts.SidecarOld.Name && !strings.HasPrefix(name, "gated_")
}

// await waits until a look has come by in the capture, the capture has ended, or a moment has passed.
func (w *wiretap) await(ctx context.Context, text string) (m mark, ok bool) {
	ok = awaitMark(ctx, w.ended, func() (bool, <-chan struct{}) {
		w.mu.Lock()
		defer w.mu.Unlock()
		m = w.marks[text]
		return m.seen, w.marked
	})
	return m, ok
}

// compare looks until what INFO counts and the capture shows are compared exactly, or for a moment. It returns the first look's mark and the last one's.
func (m *master) compare(ctx context.Context, exact func(counted tally, mk mark) bool) (first, last mark, err error) {
	for until := time.Now().Add(catchUp); ; {
		mk, seen := m.q.wire.await(ctx, m.lastMark)
		if !seen {
			return first, last, nil
		}
		if last = mk; !first.seen {
			first = mk
		}
		counted := tally{connections: m.last.totals["total_connections_received"]}
		for i, name := range Taking {
			counted[i] = m.last.stats[name].Calls
		}
		if exact(counted, mk) || time.Now().After(until) {
			return first, last, nil
		}
		_ = lifetime.Sleep(ctx, time.Duration(rand.Int64N(int64(betweenLooks)))) // clients that keep step with us are met at another moment
		if err := m.look(ctx); err != nil {
			return first, last, err
		}
	}
}

// betweenLooks is the longest pause between two looks that find out how much is under way.
const betweenLooks = 20 * time.Millisecond

// beginWire finds the first look in the capture. What was counted before it is no part of the window.
func (m *master) beginWire(ctx context.Context) error {
	w := m.q.wire
	_, last, err := m.compare(ctx, m.hidden.starts)
	if err != nil {
		return err
	}
	if !last.seen {
		w.mu.Lock()
		defer w.mu.Unlock()
		why := "is it of this server, on its host, and written at once?"
		if w.err != nil && w.err != io.EOF {
			why = w.err.Error()
		}
		return &endpoint.Error{What: "the capture does not show this run's own first look at " + m.addr + ": " + why, Advice: "tcpdump -i any -s 66000 -B 131072 -U --immediate-mode -w - port PORT | lockmigrate verify --pcap - ..."}
	}
	m.wireFirst, m.first = last, m.last
	m.settle(true)
	m.looks = m.looks[len(m.looks)-1:]
	for i := range m.facts.Commands {
		m.facts.Commands[i].Run, m.facts.Commands[i].Denied = 0, 0
	}
	list, err := endpoint.Clients(ctx, m.conn)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		return nil // the duty stays open
	}
	m.listed = map[string]bool{}
	for _, c := range list {
		m.listed[c["addr"]] = true
		w.watch[c["addr"]] = w.reading.Knows(c["addr"])
	}
	return nil
}

// endWire says what the capture has shown from the first look to the last.
func (m *master) endWire(ctx context.Context) {
	w := m.q.wire
	c := &Capture{}
	m.facts.Capture = c
	b, last, _ := m.compare(ctx, m.hidden.stops)
	m.settle(true)
	list, err2 := endpoint.Clients(ctx, m.conn)
	w.mu.Lock()
	defer w.mu.Unlock()
	a := m.wireFirst
	if w.reading == nil {
		return
	}
	seen := w.reading.SoFar()
	c.From, c.To, c.Packets, c.NotSeen = seen.First, seen.Last, seen.Packets, seen.NotSeen()
	if n := last.skipped - a.skipped; n > 0 {
		c.NotSeen = append(c.NotSeen, fmt.Sprintf("%d packets of connections whose beginning is not in it", n))
	}
	for _, mk := range []mark{a, b} {
		if mk.seen {
			c.Marks++
		}
	}
	missing := func(at int) int64 { return m.hidden.after[at] - m.hidden.before[at] }
	c.Accepted = m.last.totals["total_connections_received"] - m.first.totals["total_connections_received"]
	c.Opened = c.Accepted - missing(connections)
	c.Ours, c.Foreign = max(0, b.least[ourScripts]-a.most[ourScripts]), b.most[otherScripts]-a.least[otherScripts]
	for i := range m.facts.Commands {
		command := &m.facts.Commands[i]
		command.Captured = command.Run - missing(i)
		command.Unclear += w.traffic.counts.unclear[i]
	}
	if err2 != nil || m.listed == nil {
		return
	}
	c.Listed = len(m.listed) + len(list)
	c.Missing = m.notCaptured(w, list)
}

// notCaptured returns the connections that may have sent a command within the window, though the capture has no packet of them.
func (m *master) notCaptured(w *wiretap, list []map[string]string) (missing []string) {
	note := func(addr string) {
		if len(missing) < mostBreaks {
			missing = append(missing, addr)
		}
	}
	idle := map[string]bool{} // connections that have sent nothing since before the first look
	for _, c := range list {
		var age, quiet int64
		_, _ = fmt.Sscan(c["age"], &age)
		_, _ = fmt.Sscan(c["idle"], &quiet)
		looked := int64(time.Since(m.first.at).Seconds()) + 1
		switch {
		case quiet > looked:
			idle[c["addr"]] = true
		case !m.listed[c["addr"]] && age > looked:
			note(c["addr"]) // it was there before, and CLIENT LIST did not show it
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(m.listed)) {
		if !w.watch[addr] && !idle[addr] {
			note(addr)
		}
	}
	return missing
}
