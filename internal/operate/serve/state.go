// Package serve serves one web page, its API and metrics about a deployment: stage and members, traffic,
// clocks, hazards as they happen, ghosts. It only reads.
package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// State is what the page shows.
type State struct {
	Now       time.Time          `json:"now"`
	Server    string             `json:"server"`
	Error     string             `json:"error,omitempty"` // what keeps the page from being up to date
	Monitor   string             `json:"monitor"`         // on, off, waiting, or why it stopped
	Namespace *stages.Document   `json:"namespace"`
	Totals    map[string]float64 `json:"totals"` // calls since the page began, by command
	Acquired  map[string]int64   `json:"acquired"`
	Hazards   map[string]int64   `json:"hazards"`
	Overlaps  int64              `json:"overlaps"`
	Refused   []string           `json:"refused"`           // reads of keys that the server refused to observe: the command, and its words
	Monitored float64            `json:"monitored_seconds"` // for how long MONITOR ran; acquisitions, hazards and overlaps are counted only then
	Quiet     *float64           `json:"quiet_seconds"`     // of the time that MONITOR ran, how much has gone by since the last acquisition; null before it ran
	Clients   []observe.Row      `json:"clients"`
	Events    []observe.EventRow `json:"events"` // the newest first
	Locks     Locks              `json:"locks"`

	uncounted, unshown error // what keeps the counters, and the namespace, from being read
}

// refuse takes in what the server refused to the reads of a burst.
func (s *State) refuse(all []string) {
	for _, why := range all {
		if !slices.Contains(s.Refused, why) && len(s.Refused) < mostRefusals {
			s.Refused = append(s.Refused[:len(s.Refused):len(s.Refused)], why) // a State that was handed out keeps its list
		}
	}
}

// mostRefusals bounds what the page lists of refusals.
const mostRefusals = 20

// Locks is the last census; a zero At is none yet.
type Locks struct {
	At    time.Time `json:"at"`
	Error string    `json:"error,omitempty"` // why there is no newer one
	census.Summary
}

const (
	maxEvents = 200
	maxRows   = 200
)

// board is the state under a lock.
type board struct {
	mu      sync.Mutex
	state   State
	last    time.Time                // an acquisition came in
	earlier State                    // after the bursts before this one
	clients map[string][]observe.Row // by address: clients of one host that do different things have a row each
}

func newBoard(server string) *board {
	return &board{
		state:   State{Server: server, Monitor: "off", Totals: map[string]float64{}, Acquired: map[string]int64{}, Hazards: map[string]int64{}},
		clients: map[string][]observe.Row{},
	}
}

// read returns a copy that nobody changes.
func (b *board) read() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	s.Now = time.Now().UTC()
	if err := cmp.Or(s.uncounted, s.unshown); err != nil {
		s.Error = err.Error()
	}
	s.Totals, s.Acquired, s.Hazards = maps.Clone(s.Totals), maps.Clone(s.Acquired), maps.Clone(s.Hazards)
	s.Events = append([]observe.EventRow{}, s.Events...)
	s.Clients = []observe.Row{}
	for _, id := range slices.Sorted(maps.Keys(b.clients)) {
		s.Clients = append(s.Clients, b.clients[id]...)
	}
	return s
}

func (b *board) change(f func(*State)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.state)
}

// seen takes in what a burst has seen so far. Over says that it has ended: what follows is of another one.
func (b *board) seen(r observe.Report, now time.Time, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.state
	acquired := profile.Sum(b.earlier.Acquired, r.Acquired)
	if !maps.Equal(acquired, s.Acquired) {
		b.last = now
	}
	s.Acquired, s.Hazards, s.Overlaps = acquired, profile.Sum(b.earlier.Hazards, r.Hazards), b.earlier.Overlaps+r.OverlapCount
	events := slices.Clone(r.Events)
	for _, o := range r.Overlaps {
		events = append(events, observe.EventRow{At: o.To, Hazard: "overlap", Key: o.Key, DB: o.DB, By: &o.Second.Who, Victim: &o.First.Who, Note: fmt.Sprintf("both held for %.0f ms (%s)", o.MS, o.Cause)})
	}
	slices.SortStableFunc(events, func(a, b observe.EventRow) int { return b.At.Compare(a.At) })
	s.Events = append(events, b.earlier.Events...)
	s.Events = s.Events[:min(len(s.Events), maxEvents)]
	if over {
		b.earlier = *s
	}
}

// monitored counts an interval during which MONITOR ran.
func (b *board) monitored(since, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state.Monitored += now.Sub(since).Seconds()
	quiet := now.Sub(since).Seconds()
	switch {
	case b.last.After(since):
		quiet = max(0, now.Sub(b.last).Seconds())
	case b.state.Quiet != nil:
		quiet += *b.state.Quiet
	}
	b.state.Quiet = &quiet // a new one: a State that was handed out keeps its own
}

// rows takes in the clients of a burst. Those of earlier bursts stay until there are too many.
func (b *board) rows(rows []observe.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.clients)+len(rows) > maxRows {
		clear(b.clients)
	}
	for _, r := range rows { // what an earlier burst said of these is over
		delete(b.clients, r.Addr)
	}
	for _, r := range rows {
		if len(b.clients) < maxRows || b.clients[r.Addr] != nil {
			b.clients[r.Addr] = append(b.clients[r.Addr], r)
		}
	}
}

// count adds what the counters of one master have moved by between two looks. If one fell they began again from zero.
func (b *board) count(before, now map[string]float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, n := range now {
		if n < before[name] {
			before = nil
			break
		}
	}
	for name, n := range now {
		b.state.Totals[name] += n - before[name]
	}
}
