// Package overlaps finds locks that clients of several watching processes held at once.
//
// A process that watches a part of the clients sees no overlap with the others. It writes down the holds of its clients: Seen. Each
// time is between two bounds on the server's clock. The first is the client's command on its way to the server, the second is the reply, and
// both are widened by what is not known of the watcher's clock. Find compares the holds of several processes. An overlap is certain where
// the bounds leave no other order. It is undecided where they do not tell.
package overlaps

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Format is the file's.
const Format = "lockmigrate-holds-1"

// Seen are the holds that one process saw.
type Seen struct {
	Format string   `json:"format"`
	Match  []string `json:"match,omitempty"` // the key patterns that it was given; none: every key
	// From and To are on the server's clock. All holds that its clients began in between are here.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// ClockErrorUS is by how many microseconds all times may be off, either way.
	ClockErrorUS int64    `json:"clock_error_us"`
	NotSeen      []string `json:"not_seen,omitempty"` // why holds between From and To may be missing
	Keys         []Key    `json:"keys"`
	Clients      []Client `json:"clients"`
	Holds        []Hold   `json:"holds"`
}

// Key is a lock's key.
type Key struct {
	DB   int    `json:"db"`
	Name string `json:"name"`
}

// Client is a connection.
type Client struct {
	Addr    string `json:"addr"`
	Name    string `json:"name,omitempty"`
	Kind    string `json:"kind"`
	Dialect string `json:"dialect,omitempty"`
}

// Hold is one client having one key. Times are microseconds after From, each between two bounds.
type Hold struct {
	Key, Client int      // places in the lists
	Begin       [2]int64 // when it acquired
	End         [2]int64 // when it last showed that it believed to hold
	Ended       bool     // it released the lock then, or learned of its loss; else nobody knows what came after End
	Mark        uint32   // of the value: holds with different marks wrote different values
}

// MarshalJSON implements json.Marshaler: eight numbers, as a file has many holds.
func (h Hold) MarshalJSON() ([]byte, error) {
	ended := 0
	if h.Ended {
		ended = 1
	}
	return fmt.Appendf(nil, "[%d,%d,%d,%d,%d,%d,%d,%d]", h.Key, h.Client, h.Begin[0], h.Begin[1], h.End[0], h.End[1], ended, h.Mark), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Hold) UnmarshalJSON(text []byte) error {
	var n []int64
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	if len(n) != 8 {
		return fmt.Errorf("a hold of %d numbers", len(n))
	}
	*h = Hold{int(n[0]), int(n[1]), [2]int64{n[2], n[3]}, [2]int64{n[4], n[5]}, n[6] == 1, uint32(n[7])}
	return nil
}

// Write writes the holds as JSON.
func (s Seen) Write(w io.Writer) error {
	s.Format = Format
	return json.NewEncoder(w).Encode(s)
}

// Read reads what Write wrote, and checks it.
func Read(r io.Reader) (Seen, error) {
	var s Seen
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return s, fmt.Errorf("no file of holds: %w", err)
	}
	if s.Format != Format {
		return s, fmt.Errorf("no file of holds of this version: format %q, this program reads %q", s.Format, Format)
	}
	if s.ClockErrorUS < 0 {
		return s, fmt.Errorf("the clock's error is negative")
	}
	for i, h := range s.Holds {
		switch {
		case h.Key < 0 || h.Key >= len(s.Keys) || h.Client < 0 || h.Client >= len(s.Clients):
			return s, fmt.Errorf("hold %d: there is no such key or client", i)
		case h.Begin[1] < h.Begin[0] || h.End[1] < h.End[0] || h.End[1] < h.Begin[1]:
			return s, fmt.Errorf("hold %d: its times are not in order", i)
		}
	}
	return s, nil
}
