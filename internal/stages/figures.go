package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Figure is a duration that a record keeps of the old clients. Its row here and its use are all that it needs: flags, what is stored, the
// plan of a change and its checks are made from the row.
type Figure struct {
	Name   string // in a sentence; its flag has dashes for the blanks
	Stored string // in the record, in milliseconds
	Usage  string // of the flag
	Of     func(r *Record) *time.Duration
	// Bolder tells that a is less careful than b.
	Bolder func(a, b time.Duration) bool
	How    string // a bolder one is, in a word
}

// Flag is the figure's on the command line.
func (f Figure) Flag() string { return strings.ReplaceAll(f.Name, " ", "-") }

func longer(a, b time.Duration) bool  { return a > b }
func shorter(a, b time.Duration) bool { return a < b }

// Figures are all of them. The first one each record has; the others are zero where they are not known.
var Figures = []Figure{
	{"shortest lease", "shortest_ms", "the shortest lease of any legacy client: a `DURATION`",
		func(r *Record) *time.Duration { return &r.Shortest }, longer, "longer"},
	{"clock lag", "lag_ms", "how far a legacy client's clock may be behind the server's: a `DURATION`; 1s unless given, and with 0s",
		func(r *Record) *time.Duration { return &r.ClockLag }, shorter, "shorter"},
	{"command delay", "delay_ms", "how late a legacy client's command may come after it read an expiry: a `DURATION`; 250ms unless given, and with 0s",
		func(r *Record) *time.Duration { return &r.CommandDelay }, shorter, "shorter"},
	{"yield", "yield_ms", "for how long services leave a contended key free at a time; longer than a legacy client's pause between two looks: a `DURATION`; unless given, and with 0s, the dialect's pause and a fifth, 120ms for most",
		func(r *Record) *time.Duration { return &r.Yield }, shorter, "shorter"},
	{"longest silence", "longest_ms", "the longest `DURATION` that any legacy client is silent, its lease or the pause between two runs of its job; verify takes it where its own --longest-silence is missing; not known unless given, and with 0s",
		func(r *Record) *time.Duration { return &r.Longest }, shorter, "shorter"},
}

// Clients is what the record says of the old clients, as it is stored.
func (r Record) Clients() (string, error) {
	if r.Handover != nil {
		text, err := json.Marshal(map[string]*Halves{"handover": r.Handover})
		return string(text), err
	}
	dialect, err := json.Marshal(r.Dialect)
	text := `{"dialect":` + string(dialect)
	for i, f := range Figures {
		if d := *f.Of(&r); d != 0 || i == 0 {
			text += fmt.Sprintf(",%q:%d", f.Stored, d.Milliseconds())
		}
	}
	return text + "}", err
}

func (r *Record) unpackClients(text string) error {
	var stored map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return err
	}
	if raw := stored["handover"]; raw != nil {
		if err := json.Unmarshal(raw, &r.Handover); err != nil {
			return err
		}
		if r.Handover == nil || r.Handover.Old.zero() || r.Handover.New.zero() {
			return errors.New("a handover without both halves")
		}
		return nil
	}
	if raw := stored["dialect"]; raw != nil {
		if err := json.Unmarshal(raw, &r.Dialect); err != nil {
			return err
		}
	}
	for _, f := range Figures {
		raw := stored[f.Stored]
		if raw == nil {
			continue
		}
		var ms int64
		if err := json.Unmarshal(raw, &ms); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if ms < 0 || ms > (10*365*24*time.Hour).Milliseconds() {
			return fmt.Errorf("%s: %d ms is not between 0 and ten years", f.Name, ms)
		}
		*f.Of(r) = time.Duration(ms) * time.Millisecond
	}
	if r.Dialect == "" || r.Shortest == 0 {
		return errors.New("no dialect, or no shortest lease")
	}
	return nil
}
