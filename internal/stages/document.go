package stages

import "time"

// Document is a namespace as the tools write it in JSON. Times are in milliseconds.
type Document struct {
	Namespace string            `json:"namespace"`
	Protocol  int               `json:"protocol"` // of the record, see docs/compatibility.md
	Stage     string            `json:"stage"`
	Epoch     int64             `json:"epoch"`
	Since     time.Time         `json:"since"`
	Patterns  []string          `json:"patterns"`
	Dialect   string            `json:"dialect"`
	Shortest  int64             `json:"shortest_lease_ms"`
	Lag       int64             `json:"clock_lag_ms"`       // 0: the members' own
	Delay     int64             `json:"command_delay_ms"`   // the same
	Yield     int64             `json:"yield_ms"`           // the same
	Longest   int64             `json:"longest_silence_ms"` // 0: not measured
	RestsOn   string            `json:"rests_on,omitempty"` // a certificate, or why it was forced
	Members   []MemberDocument  `json:"members"`
	BlockedBy []BlockerDocument `json:"blocked_by,omitzero"` // missing: nobody asked
	Changing  []string          `json:"changing_over"`       // members that live and do not run the stage yet
	AtMost    int64             `json:"changing_over_ms"`    // for how long at most they may act in the stage before
}

// MemberDocument is one member of a Document.
type MemberDocument struct {
	ID string `json:"id"`
	Info
	Epoch   int64  `json:"epoch"` // -1: none yet
	Stage   string `json:"stage"` // empty: none yet
	Lowest  string `json:"lowest_stage_in_use"`
	Highest string `json:"highest_stage_in_use"`
	Seen    int64  `json:"seen_ms_ago"`
	Left    int64  `json:"lease_left_ms"`    // negative: silent
	Skew    int64  `json:"skew_ms"`          // positive: ahead of the server
	Misfit  string `json:"misfit,omitempty"` // why it cannot run the namespace
}

// BlockerDocument is a Blocker.
type BlockerDocument struct {
	Member string `json:"member"`
	Why    string `json:"why"`
	Wait   int64  `json:"wait_ms"` // -1 while it lives
	Text   string `json:"text"`
}

// Document writes the namespace down, with those that block a change.
func (v View) Document(blockers []Blocker) Document {
	r := v.Record
	late, atMost := v.ChangingOver()
	doc := Document{
		Namespace: r.Namespace, Protocol: Protocol, Stage: r.Stage.String(), Epoch: r.Epoch, Since: r.Since.UTC(), Patterns: EscapeAll(r.Patterns), Dialect: r.Dialect, Shortest: r.Shortest.Milliseconds(),
		Lag: r.ClockLag.Milliseconds(), Delay: r.CommandDelay.Milliseconds(), Yield: r.Yield.Milliseconds(), Longest: r.Longest.Milliseconds(), RestsOn: r.Note,
		Members: []MemberDocument{}, BlockedBy: BlockersDocument(blockers), Changing: []string{}, AtMost: atMost.Milliseconds(),
	}
	for _, m := range late {
		doc.Changing = append(doc.Changing, m.ID)
	}
	for _, m := range v.Members {
		row := MemberDocument{
			ID: m.ID, Info: m.Info, Epoch: m.Epoch, Lowest: m.Lowest.String(), Highest: m.Highest.String(),
			Seen: m.Seen.Milliseconds(), Left: m.Left.Milliseconds(), Skew: m.Skew.Milliseconds(), Misfit: m.Misfit,
		}
		if Valid(m.Stage) {
			row.Stage = m.Stage.String()
		}
		doc.Members = append(doc.Members, row)
	}
	return doc
}

// BlockersDocument writes blockers down.
func BlockersDocument(blockers []Blocker) []BlockerDocument {
	all := []BlockerDocument{}
	for _, b := range blockers {
		wait := b.Wait.Milliseconds()
		if b.Wait < 0 {
			wait = -1
		}
		all = append(all, BlockerDocument{b.Member, b.Why, wait, b.String()})
	}
	return all
}
