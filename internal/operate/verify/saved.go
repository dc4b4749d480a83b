package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Saved is a run that has not ended: what it was asked, and what it has seen up to a moment. Another run can go on from there.
type Saved struct {
	Format   string           `json:"format"` // lockmigrate-verify-state-1
	At       time.Time        `json:"saved"`  // this host's clock
	Host     string           `json:"host"`   // where it ran
	PID      int              `json:"pid"`
	Out      string           `json:"out"` // where the certificate goes
	Options  Options          `json:"options"`
	Evidence Evidence         `json:"evidence"` // without the masters
	Masters  []MasterSaved    `json:"masters"`
	Before   map[string]value `json:"before"`
	Why      []string         `json:"why_before,omitempty"`
}

// MasterSaved is one master at a moment at which all that MONITOR had shown was accounted for.
type MasterSaved struct {
	At      time.Time        `json:"at"`
	Facts   Master           `json:"facts"`
	First   string           `json:"first"` // INFO, at the start
	Last    string           `json:"last"`
	Ruled   []string         `json:"ruled,omitempty"`
	Log     map[string]int64 `json:"log,omitempty"`
	Clients []Client         `json:"clients,omitempty"`
	Others  []Client         `json:"unexplained,omitempty"`
}

// SavedFormat is the state's.
const SavedFormat = "lockmigrate-verify-state-1"

// Write writes the state as JSON.
func (s Saved) Write(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// LoadSaved reads a state from a file.
func LoadSaved(file string) (Saved, error) {
	return load(file, "state", SavedFormat, func(s Saved) string { return s.Format })
}

// Known is the evidence so far, as if the run had been interrupted when it was saved.
func (s Saved) Known() Evidence {
	e := s.Evidence
	e.Masters, e.Seen, e.Unexplained = nil, slices.Clone(e.Seen), slices.Clone(e.Unexplained)
	for _, m := range s.Masters {
		e.Masters = append(e.Masters, m.Facts)
		e.Seen, e.Unexplained = append(e.Seen, m.Clients...), append(e.Unexplained, m.Others...)
	}
	e.Ended = s.At
	return e
}

// Lost are the obligations that this run cannot discharge any more, whatever comes.
func (s Saved) Lost() (why []string) {
	e := s.Known()
	for _, d := range duties {
		if slices.Contains([]string{"counters", "commands", "denials"}, d.id) {
			if yes, evidence := d.asks(&e); !yes {
				why = append(why, evidence)
			}
		}
	}
	return why
}

// saveEvery is the least pause between two states, a quarter of the window where that is less. One with many values is saved less often.
const saveEvery = 2 * time.Second

// save notes where a master stands, when MONITOR has shown all that the counters have counted.
func (m *master) save(ctx context.Context) {
	q := m.q
	if q.opts.Save == nil || time.Since(m.savedAt) < min(saveEvery, q.opts.Window/4)+time.Duration(len(q.before))*time.Millisecond {
		return
	}
	m.awaitLast(ctx)
	if len(m.looks) != 1 || m.facts.Looks < 2 {
		return
	}
	m.savedAt = time.Now()
	m.facts.Commands = m.tallied()
	state := MasterSaved{At: m.looks[0].at, First: m.first.text, Last: m.last.text, Ruled: m.ruled, Log: maps.Clone(m.log.Totals)}
	state.Clients, state.Others = m.found()
	state.Facts = m.facts
	q.telling.Lock()
	defer q.telling.Unlock()
	q.states[m] = state
	if len(q.states) < len(q.masters) {
		return
	}
	s := Saved{Format: SavedFormat, At: time.Now().UTC(), Options: q.opts, Evidence: q.facts, Before: q.before, Why: q.whyBefore}
	s.Evidence.Matched = q.matched()
	first := s.At
	for _, m := range q.masters {
		s.Masters = append(s.Masters, q.states[m])
		if at := q.states[m].At; at.Before(first) {
			first = at
		}
	}
	s.Evidence.LookedSeconds = max(0, q.base+first.Sub(q.began)).Seconds()
	q.opts.Save(s)
}

// sameNamespace refuses to go on after the record has changed: a certificate is about one epoch.
func (q *inquiry) sameNamespace() error {
	if q.opts.Resume == nil || q.facts.Namespace == nil {
		return nil
	}
	was, is := q.opts.Resume.Evidence.Namespace, q.facts.Namespace
	if was == nil || was.Epoch != is.Epoch || !was.Since.Equal(is.Since) || !slices.Equal(was.Patterns, is.Patterns) {
		return &endpoint.Error{What: "namespace " + is.Name + " has changed since this run was ended", Advice: "begin a new one, without --resume"}
	}
	return nil
}

// resume goes on where the run stood that this one follows. Where the counters do not show that nothing ran in between, the window begins
// again. What was seen stays seen.
func (q *inquiry) resume(ctx context.Context) {
	s := q.opts.Resume
	if s == nil {
		return
	}
	known := s.Known()
	sees(&q.facts.Seen, known.Seen...)
	sees(&q.facts.Unexplained, known.Unexplained...)
	q.touched(append(known.Matched, q.matched()...)...)
	if len(s.Masters) == 0 {
		return
	}
	gap := Gap{From: s.Masters[0].At.UTC(), To: time.Now().UTC()}
	was := map[string]*MasterSaved{}
	for i := range s.Masters {
		was[s.Masters[i].Facts.Addr] = &s.Masters[i]
		if s.Masters[i].At.Before(gap.From) {
			gap.From = s.Masters[i].At.UTC()
		}
	}
	if len(was) != len(q.masters) {
		gap.Restarted = "the masters are others"
	}
	for _, m := range q.masters {
		switch before := was[m.addr]; {
		case gap.Restarted != "":
		case before == nil:
			gap.Restarted = "the masters are others"
		default:
			if why := m.ranSince(before); why != "" {
				gap.Restarted = m.addr + ": " + why
			}
		}
	}
	q.facts.Gaps = append(slices.Clone(s.Evidence.Gaps), gap)
	if gap.Restarted != "" {
		q.warn("the window begins again: " + gap.Restarted)
		return
	}
	q.base, q.facts.Started = seconds(s.Evidence.LookedSeconds), s.Evidence.Started
	q.before, q.whyBefore = s.Before, s.Why
	if q.before == nil {
		q.before = map[string]value{}
	}
	for _, m := range q.masters {
		m.follows(ctx, was[m.addr])
	}
}

// ranSince tells why the counters do not show that nothing ran since a master's state, empty if they do.
func (m *master) ranSince(s *MasterSaved) string {
	was := readInfo(s.Last)
	if why := broken(was, m.last); why != "" {
		return why
	}
	ruled := unchanged(s.Ruled, m.ruled, readInfo(s.First), m.last)
	var ran []string
	for _, name := range slices.Sorted(maps.Keys(m.last.stats)) {
		if n := m.last.stats[name].Calls - was.stats[name].Calls; n > 0 && m.mayWrite(name) && !slices.Contains(ruled, name) {
			ran = append(ran, fmt.Sprintf("%d %s", n, strings.ToUpper(name)))
		}
	}
	if len(ran) == 0 {
		return ""
	}
	return strings.Join(ran, ", ") + " ran while nobody looked"
}

// follows makes the gap one more interval between two looks, without MONITOR.
func (m *master) follows(ctx context.Context, s *MasterSaved) {
	was, now := readInfo(s.Last), m.facts
	m.facts = s.Facts
	for _, c := range s.Facts.Commands {
		*m.ran(c.Name) = c
	}
	m.facts.Writes = min(m.facts.Writes, now.Writes)
	m.facts.Looks += now.Looks
	m.facts.Canary += max(0, m.last.stats[canary].Calls-was.stats[canary].Calls)
	redirected, others := refused(was, m.last)
	m.facts.Redirected += redirected
	m.facts.Refused += others
	m.facts.CountsDenied = m.facts.CountsDenied && now.CountsDenied
	m.facts.Named = m.facts.Named && now.Named
	m.facts.LogRead = m.facts.LogRead && now.LogRead
	m.facts.Refuses = strings.Join(slices.DeleteFunc([]string{m.facts.Refuses, now.Refuses}, func(s string) bool { return s == "" }), "; ")
	if now.Partial != "" {
		m.facts.Partial = now.Partial
	}
	for _, why := range now.Breaks {
		m.breaks(why)
	}
	m.looks = append([]look{{at: was.at, stats: was.stats}}, m.looks...)
	m.first, m.ruled = readInfo(s.First), s.Ruled
	m.seen += s.Facts.Unexplained
	m.log.Totals = s.Log
	m.poll(ctx) // what was denied in the gap
}
