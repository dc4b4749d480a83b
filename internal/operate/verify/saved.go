package verify

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

// Saved is a run that has not ended: what it was asked, and what it has seen up to a look. Another run can go on from there.
type Saved struct {
	Format   string                 `json:"format"` // lockmigrate-verify-state-2
	At       time.Time              `json:"saved"`  // this host's clock
	Host     string                 `json:"host"`   // where it ran
	PID      int                    `json:"pid"`
	Out      string                 `json:"out"` // where the certificate goes
	Options  Options                `json:"options"`
	Evidence Evidence               `json:"evidence"` // as if the run had been interrupted; Ruled is of the start
	Masters  map[string]MasterSaved `json:"masters"`  // by address
	Before   map[string]value       `json:"before"`
	Why      []string               `json:"why_before,omitempty"`
}

// MasterSaved is what a look at a master is compared with.
type MasterSaved struct {
	First string         `json:"first"` // INFO, at the start
	Last  string         `json:"last"`
	Log   []fence.Logged `json:"log"` // of ACL LOG; an empty one is not nil
}

// SavedFormat is the state's.
const SavedFormat = "lockmigrate-verify-state-2"

// Write writes the state as JSON.
func (s Saved) Write(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// LoadSaved reads a state from a file.
func LoadSaved(file string) (Saved, error) {
	return load(file, "state", SavedFormat, func(s Saved) string { return s.Format })
}

// Lost are the obligations that the run cannot discharge any more: it begins again where it goes on.
func (s Saved) Lost() []string { return s.Evidence.lost() }

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

// save tells of a state, after a look at all masters at a moment.
func (q *inquiry) save(at time.Time) {
	if q.opts.Save == nil || time.Since(q.savedAt) < min(saveEvery, q.opts.Window/4)+time.Duration(len(q.before))*time.Millisecond ||
		slices.ContainsFunc(q.masters, func(m *master) bool { return m.facts.Looks < 2 || !m.facts.Ended }) {
		return
	}
	q.savedAt = time.Now()
	s := Saved{Format: SavedFormat, At: time.Now().UTC(), Options: q.opts, Evidence: q.facts, Masters: map[string]MasterSaved{}, Before: q.before, Why: q.whyBefore}
	e := &s.Evidence
	e.Ended, e.Matched, e.LookedSeconds = at.UTC(), q.matched(), max(0, q.base+at.Sub(q.began)).Seconds()
	e.Seen, e.Unexplained = slices.Clone(e.Seen), slices.Clone(e.Unexplained)
	q.found(e)
	for _, m := range q.masters {
		e.Masters = append(e.Masters, m.soFar(m.ruled))
		s.Masters[m.addr] = MasterSaved{m.first.text, m.last.text, m.log.Last}
	}
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
	sees(&q.facts.Seen, s.Evidence.Seen...)
	sees(&q.facts.Unexplained, s.Evidence.Unexplained...)
	for _, p := range s.Evidence.Matched {
		q.touched.Store(p, true)
	}
	lost := s.Lost()
	var were []string
	for _, m := range s.Evidence.Masters {
		were = append(were, m.Addr)
	}
	if slices.Sort(were); !slices.Equal(were, slices.Sorted(slices.Values(addrs))) {
		lost = append(lost, "the masters are others")
	}
	if len(lost) == 0 {
		if err := q.open(ctx, addrs, s); err != nil {
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
		for _, m := range q.masters {
			m.closeTap("")
		}
		q.found(&q.facts) // what was denied in the gap, and what MONITOR has shown since
		q.close()
		return q.open(ctx, addrs, nil)
	}
	q.facts.Gaps = append(s.Evidence.Gaps, Gap{s.Evidence.Ended, time.Now().UTC()})
	q.base, q.facts.Started = seconds(s.Evidence.LookedSeconds), s.Evidence.Started
	q.before, q.whyBefore = s.Before, s.Why
	if q.before == nil {
		q.before = map[string]value{}
	}
	return nil
}

// follows lets the next look be one after that of a state.
func (m *master) follows(s *Saved) {
	now, i := m.facts, slices.IndexFunc(s.Evidence.Masters, func(was Master) bool { return was.Addr == m.addr })
	m.facts = s.Evidence.Masters[i]
	m.ruled = m.facts.Ruled
	for _, c := range m.facts.Commands {
		*m.ran(c.Name) = c
	}
	m.facts.Writes, m.facts.TableWhy, m.facts.Named, m.facts.NamedWhy = now.Writes, now.TableWhy, now.Named, now.NamedWhy
	state := s.Masters[m.addr]
	m.first, m.last = readInfo(state.First), readInfo(state.Last)
	m.log.Last = state.Log
}
