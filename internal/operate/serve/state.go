// Package serve serves one web page, its API and metrics about a deployment: stage and members, traffic,
// clocks, hazards as they happen, ghosts. It only reads.
package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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

// Locks is the last census; a zero At is none yet.
type Locks struct {
	At    time.Time `json:"at"`
	Error string    `json:"error,omitempty"` // why there is no newer one
	census.Summary
}

// What the page lists at most.
const (
	maxEvents    = 200
	maxRows      = 200
	mostRefusals = 20
)

// State returns what is known now: a copy that nobody changes.
func (c *Collector) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Now = time.Now().UTC()
	if err := cmp.Or(s.uncounted, s.unshown); err != nil {
		s.Error = err.Error()
	}
	s.Totals, s.Acquired, s.Hazards = maps.Clone(s.Totals), maps.Clone(s.Acquired), maps.Clone(s.Hazards)
	s.Events = append([]observe.EventRow{}, s.Events...)
	s.Clients = []observe.Row{}
	for _, id := range slices.Sorted(maps.Keys(c.clients)) {
		s.Clients = append(s.Clients, c.clients[id]...)
	}
	return s
}

func (c *Collector) change(f func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// saw takes in what a burst has seen so far, after MONITOR has run for so long again. Over says that it has ended: what follows is of another one.
// Clients of earlier bursts stay until there are too many.
func (c *Collector) saw(r observe.Report, ran time.Duration, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, quiet := &c.state, ran.Seconds()
	s.Monitored += quiet
	acquired := profile.Sum(c.earlier.Acquired, r.Acquired)
	if !maps.Equal(acquired, s.Acquired) {
		quiet = 0
	} else if s.Quiet != nil {
		quiet += *s.Quiet
	}
	s.Quiet = &quiet // a new one: a State that was handed out keeps its own
	s.Acquired, s.Hazards, s.Overlaps = acquired, profile.Sum(c.earlier.Hazards, r.Hazards), c.earlier.Overlaps+r.OverlapCount
	events := slices.Clone(r.Events)
	for _, o := range r.Overlaps {
		events = append(events, observe.EventRow{At: o.To, Hazard: "overlap", Key: o.Key, DB: o.DB, By: &o.Second.Who, Victim: &o.First.Who, Note: fmt.Sprintf("both held for %.0f ms (%s)", o.MS, o.Cause)})
	}
	slices.SortStableFunc(events, func(a, b observe.EventRow) int { return b.At.Compare(a.At) })
	s.Events = append(events, c.earlier.Events...)
	s.Events = s.Events[:min(len(s.Events), maxEvents)]
	for _, why := range r.Refused {
		if !slices.Contains(s.Refused, why) && len(s.Refused) < mostRefusals {
			s.Refused = append(s.Refused[:len(s.Refused):len(s.Refused)], why) // a State that was handed out keeps its list
		}
	}
	if over {
		c.earlier = *s
	}
	if len(c.clients)+len(r.Clients) > maxRows {
		clear(c.clients)
	}
	for _, row := range r.Clients { // what an earlier burst said of these is over
		delete(c.clients, row.Addr)
	}
	for _, row := range r.Clients {
		if len(c.clients) < maxRows || c.clients[row.Addr] != nil {
			c.clients[row.Addr] = append(c.clients[row.Addr], row)
		}
	}
}

// count adds what the counters of one master have moved by between two looks. If one fell they began again from zero.
func (c *Collector) count(before, now map[string]float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range now {
		if n < before[name] {
			before = nil
			break
		}
	}
	for name, n := range now {
		c.state.Totals[name] += n - before[name]
	}
}
