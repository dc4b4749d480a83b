// Package verify gathers evidence that no legacy client is left, and writes it down as a certificate.
//
// The evidence, from the strongest to the weakest:
//
//   - commandstats: the server counts every SETNX and GETSET, those within scripts and those that an ACL
//     denied included. If the counts of every master stand still over the window, with the same run id and
//     without CONFIG RESETSTAT, nobody sent one.
//   - ACL LOG: with a fence on, it names who tried.
//   - members: a member of the namespace that runs stage legacy is a legacy client.
//   - census: a legacy value that is new or live at the end was written by somebody.
//   - MONITOR bursts: name who sends what, for a part of the window.
//
// Quiet is not proof: a job that runs once a month sends nothing in an hour. So a certificate says for which
// window it speaks, and the verdict is inconclusive whenever a source that it rests on has a hole.
package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Verdict is what the evidence comes to.
type Verdict string

// The verdicts.
const (
	NoneSeen     Verdict = "none-seen"
	Seen         Verdict = "seen"
	Inconclusive Verdict = "inconclusive"
)

// Certificate is what was found, for which window, from which sources.
type Certificate struct {
	Format        string    `json:"format"` // lockmigrate-certificate-1
	Verdict       Verdict   `json:"verdict"`
	Why           string    `json:"why"`
	Namespace     string    `json:"namespace,omitempty"`
	Epoch         int64     `json:"epoch,omitempty"`
	Patterns      []string  `json:"patterns,omitempty"`
	Started       time.Time `json:"started"` // this host's clock
	Ended         time.Time `json:"ended"`
	WindowSeconds float64   `json:"window_seconds"`
	Servers       []Server  `json:"servers"`
	Sources       []Source  `json:"sources"`
	LegacyClients []Client  `json:"legacy_clients"`
	ResidualRisks []string  `json:"residual_risks"`
}

// Format is the certificate's.
const Format = "lockmigrate-certificate-1"

// Server is one master over the window.
type Server struct {
	Addr     string `json:"addr"`
	RunID    string `json:"run_id"`
	Version  string `json:"version"`
	SetNX    int64  `json:"setnx_calls"` // within the window
	GetSet   int64  `json:"getset_calls"`
	Rejected int64  `json:"rejected_calls"` // of both, denied before they ran
}

// State says whether a source did its work.
type State string

// The states of a source.
const (
	Whole  State = "whole"  // it covers the window
	Part   State = "part"   // it covers a part of it, as it is meant to
	Broken State = "broken" // it should have covered the window and did not
	Unused State = "unused"
)

// Source is one kind of evidence.
type Source struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
}

// Client is one that was seen to speak legacy.
type Client struct {
	Addr     string   `json:"addr,omitempty"`
	Name     string   `json:"name,omitempty"`
	User     string   `json:"user,omitempty"`
	Evidence string   `json:"evidence"`
	Dialect  string   `json:"dialect,omitempty"`
	Keys     []string `json:"keys,omitempty"`
}

// Write writes the certificate as JSON.
func (c Certificate) Write(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(c)
}

// Load reads a certificate from a file.
func Load(file string) (Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Certificate{}, err
	}
	var c Certificate
	if err := json.Unmarshal(text, &c); err != nil || c.Format != Format {
		return c, fmt.Errorf("%s is no certificate of lockmigrate verify", file)
	}
	return c, nil
}

// What is wrong with a certificate for a purpose.
var (
	ErrVerdict   = errors.New("its verdict is not none-seen")
	ErrStale     = errors.New("it is too old")
	ErrShort     = errors.New("its window is too short")
	ErrNamespace = errors.New("it is about another namespace, or an earlier epoch of it")
)

// Supports tells whether the certificate supports a namespace's step to modern: it says that none was seen
// in that very epoch, ended no longer than maxAge ago and covers at least window.
func (c Certificate) Supports(namespace string, epoch int64, now time.Time, maxAge, window time.Duration) error {
	switch {
	case c.Namespace != namespace || c.Epoch != epoch:
		return ErrNamespace
	case c.Verdict != NoneSeen:
		return ErrVerdict
	case now.Sub(c.Ended) > maxAge || c.Ended.After(now.Add(time.Minute)):
		return ErrStale
	case c.WindowSeconds < window.Seconds():
		return ErrShort
	}
	return nil
}
