package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Record is what a namespace is.
type Record struct {
	Namespace string
	Stage     Stage
	Epoch     int64 // grows by one with every change of the stage
	Since     time.Time
	Patterns  []string // of the keys, as Redis matches them; see Covers
	Dialect   string
	Shortest  time.Duration // the shortest lease of any legacy client
	// ClockLag is how far a legacy client's clock may be behind the server's, and CommandDelay how late its commands
	// may come. Zero: not measured, members take their own.
	ClockLag, CommandDelay time.Duration
	// Yield is for how long a contended key is left free at a time for old clients. Zero: members take their own.
	Yield time.Duration
	// Longest is the longest silence of a legacy client that was measured: a lease, a hold, a pause between two turns. Zero: none was.
	Longest time.Duration
	// Handover is what a namespace of package handover moves from and to; nil for one that moves from legacy to modern.
	Handover *Halves
	Note     string   // what the last change of stage rests on: a certificate, or why it was forced
	History  []Change // of the record, the oldest first; the newest 50
}

// Silence is the least that may be said to be the longest silence of a legacy client.
func (r Record) Silence() time.Duration { return max(r.Shortest, r.Longest) }

// Change is one line of a record's history, for people.
type Change struct {
	At    time.Time `json:"at"` // on the server's clock
	Epoch int64     `json:"epoch"`
	What  string    `json:"what"`
	By    string    `json:"by,omitempty"`
	Note  string    `json:"note,omitempty"`
}

// changing says who changes what, for a script to keep.
func (s *Store) changing(epoch int64, note, format string, args ...any) string {
	text, err := json.Marshal(Change{Epoch: epoch, What: fmt.Sprintf(format, args...), By: s.By, Note: note})
	if err != nil { // no type in it can fail
		return "{}"
	}
	return string(text)
}

// historyOf reads the lines of a history. What cannot be read is left out: it is for people.
func historyOf(text string) (all []Change) {
	for line := range strings.Lines(text) {
		at, entry, _ := strings.Cut(strings.TrimSpace(line), " ")
		ms, err := strconv.ParseInt(at, 10, 64)
		var c Change
		if err != nil || json.Unmarshal([]byte(entry), &c) != nil {
			continue
		}
		c.At = time.UnixMilli(ms).UTC()
		all = append(all, c)
	}
	return all
}

func (s *Store) record(epoch, stage, since int64, patterns, clients string) (Record, error) {
	r := Record{Namespace: s.Namespace, Epoch: epoch, Since: time.UnixMilli(since)}
	if !Valid(Stage(stage)) || stage >= int64(Old) {
		return Record{}, s.garbage("stage %d is not known to this version", stage)
	}
	if epoch < 1 || epoch >= mostEpochs {
		return Record{}, s.garbage("epoch %d", epoch)
	}
	err := json.Unmarshal([]byte(patterns), &r.Patterns)
	if r.Patterns = UnescapeAll(r.Patterns); err == nil && len(r.Patterns) == 0 {
		err = errors.New("none")
	}
	if err != nil {
		return Record{}, s.garbage("patterns: %w", err)
	}
	if err := r.unpackClients(clients); err != nil {
		return Record{}, s.garbage("clients: %w", err)
	}
	r.Stage = r.stage(stage)
	return r, nil
}

// mostEpochs is what a script can count to exactly.
const mostEpochs = 1 << 53

// garbage says what of a record, or of its members, cannot be read.
func (s *Store) garbage(format string, args ...any) error {
	return fmt.Errorf("namespace %s: %w: %w", s.Namespace, ErrGarbage, fmt.Errorf(format, args...))
}

// stored is how the record's patterns, and what it says of the old clients, stand on the server.
func (r Record) stored() (patterns, clients string, err error) {
	text, err := json.Marshal(EscapeAll(r.Patterns))
	if err == nil {
		clients, err = r.Clients()
	}
	return string(text), clients, err
}
