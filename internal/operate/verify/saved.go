package verify

import (
	"context"
	"encoding/json"
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

// MasterSaved is one master at a look.
type MasterSaved struct {
	At      time.Time        `json:"at"`
	Facts   Master           `json:"facts"` // Ruled is of the start
	First   string           `json:"first"` // INFO, at the start
	Last    string           `json:"last"`
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

// Lost are the obligations that the run cannot discharge any more: it begins again where it goes on.
func (s Saved) Lost() []string {
	e := s.Known()
	return e.lost()
}

// lost are the obligations that a run with this evidence cannot discharge any more, whatever comes.
func (e *Evidence) lost() (why []string) {
	for _, d := range duties {
		if slices.Contains([]string{"counters", "commands", "denials"}, d.id) {
			if yes, evidence := d.asks(e); !yes {
				why = append(why, evidence)
			}
		}
	}
	return why
}

// saveEvery is the least pause between two states, a quarter of the window where that is less. One with many values is saved less often.
const saveEvery = 2 * time.Second

// save notes where a master stands after a look.
func (m *master) save() {
	q := m.q
	if q.opts.Save == nil || m.facts.Looks < 2 || time.Since(m.savedAt) < min(saveEvery, q.opts.Window/4)+time.Duration(len(q.before))*time.Millisecond {
		return
	}
	m.savedAt = time.Now()
	state := MasterSaved{At: m.last.at, First: m.first.text, Last: m.last.text, Log: maps.Clone(m.log.Totals)}
	state.Clients, state.Others = m.found()
	state.Facts = m.soFar(m.ruled)
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

// resume goes on where the run stood that this one follows. The gap between them is one more interval between two looks, without MONITOR. Where
// the run can come to nothing any more, or the gap costs it an obligation, the window begins again. What was seen stays seen.
func (q *inquiry) resume(ctx context.Context, addrs []string) error {
	s := q.opts.Resume
	if s == nil {
		return q.open(ctx, addrs, nil)
	}
	known := s.Known()
	sees(&q.facts.Seen, known.Seen...)
	sees(&q.facts.Unexplained, known.Unexplained...)
	for _, p := range known.Matched {
		q.touched.Store(p, true)
	}
	was := map[string]*MasterSaved{}
	for i, m := range s.Masters {
		was[m.Facts.Addr] = &s.Masters[i]
	}
	lost := s.Lost()
	if !slices.Equal(slices.Sorted(maps.Keys(was)), slices.Sorted(slices.Values(addrs))) {
		lost = append(lost, "the masters are others")
	}
	if len(lost) == 0 {
		if err := q.open(ctx, addrs, was); err != nil {
			return err
		}
		e := Evidence{}
		for _, m := range q.masters {
			e.Masters = append(e.Masters, m.soFar(unchanged(m.ruled, m.excludedNow(ctx), m.first, m.last)))
		}
		lost = e.lost()
	}
	if len(lost) > 0 {
		q.warn("the window begins again: " + strings.Join(lost, "; "))
		q.found() // what was denied in the gap
		q.close()
		return q.open(ctx, addrs, nil)
	}
	q.facts.Gaps = append(s.Evidence.Gaps, Gap{s.At.UTC(), time.Now().UTC()})
	q.base, q.facts.Started = seconds(s.Evidence.LookedSeconds), s.Evidence.Started
	q.before, q.whyBefore = s.Before, s.Why
	if q.before == nil {
		q.before = map[string]value{}
	}
	return nil
}

// follows lets the next look be one after that of a state.
func (m *master) follows(s *MasterSaved) {
	now := m.facts
	m.facts, m.ruled = s.Facts, s.Facts.Ruled
	m.facts.Writes, m.facts.TableWhy, m.facts.Named, m.facts.NamedWhy = now.Writes, now.TableWhy, now.Named, now.NamedWhy
	for _, c := range s.Facts.Commands {
		*m.ran(c.Name) = c
	}
	m.first, m.last = readInfo(s.First), readInfo(s.Last)
	m.log.Totals = s.Log
}
