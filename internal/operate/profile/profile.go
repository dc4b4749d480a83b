// Package profile is the file in which observe writes down a fleet as it was measured, and from which
// simulate builds the same fleet.
package profile

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"
)

// Version is the format's.
const Version = 1

// Profile is a fleet as it was measured.
type Profile struct {
	Version       int       `json:"version"`
	Measured      time.Time `json:"measured"` // by the server's clock
	WindowSeconds float64   `json:"window_seconds"`
	Match         []string  `json:"match,omitempty"`    // the key patterns that observe was given; none: every key
	NotSeen       []string  `json:"not_seen,omitempty"` // why some of the traffic is missing
	Clients       []Client  `json:"clients"`
}

// Client is one member, or Count members alike.
type Client struct {
	Name    string   `json:"name"` // an address, a host or a CLIENT SETNAME
	Kind    string   `json:"kind"` // legacy, bridge, modern, redisson, unknown
	Dialect string   `json:"dialect,omitempty"`
	Count   int      `json:"count"`
	Keys    []string `json:"keys,omitempty"`     // the kinds of keys that it locks, the most frequent first; ids are #
	LeaseMS float64  `json:"lease_ms,omitempty"` // 0: not known
	// LeaseFrom says where the lease is known from: given, fleet (clients share it), round (a guess), ttl.
	LeaseFrom string  `json:"lease_from,omitempty"`
	PollMS    float64 `json:"poll_ms,omitempty"` // 0: it never had to wait
	// PauseMS is the longest time from its GET of an expired value to the GETSET of its takeover; 0: none was seen.
	PauseMS     float64    `json:"takeover_pause_max_ms,omitempty"`
	SkewMS      float64    `json:"skew_ms"`       // its clock less the server's
	SkewErrorMS float64    `json:"skew_error_ms"` // 0 with SkewKnown unset
	SkewKnown   bool       `json:"skew_known"`
	PerSecond   float64    `json:"acquired_per_second"`
	HoldMS      []Quantile `json:"hold_ms,omitempty"`
	WaitMS      []Quantile `json:"wait_ms,omitempty"`
}

// Quantile says that a share of the values lies at or below MS.
type Quantile struct {
	Share float64 `json:"share"` // 0 to 1, rising
	MS    float64 `json:"ms"`
}

// Write writes a profile as JSON.
func (p Profile) Write(w io.Writer) error {
	if p.Clients == nil {
		p.Clients = []Client{}
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(p)
}

// Read reads a profile and checks it.
func Read(r io.Reader) (Profile, error) {
	var p Profile
	in := json.NewDecoder(r)
	if err := in.Decode(&p); err != nil {
		return p, fmt.Errorf("profile: %w", err)
	}
	return p, p.Validate()
}

// Validate says what is wrong with a profile.
func (p Profile) Validate() error {
	if p.Version != Version {
		return fmt.Errorf("profile: version %d, this program reads version %d", p.Version, Version)
	}
	for i, c := range p.Clients {
		bad := func(what string) error { return fmt.Errorf("profile: client %d (%q): %s", i, c.Name, what) }
		for _, n := range []float64{c.LeaseMS, c.PollMS, c.PauseMS, c.SkewErrorMS, c.PerSecond} {
			if n < 0 || math.IsInf(n, 0) || math.IsNaN(n) {
				return bad("a number is negative or none")
			}
		}
		if c.Count < 1 {
			return bad("count is below 1")
		}
		for _, q := range [][]Quantile{c.HoldMS, c.WaitMS} {
			last := Quantile{}
			for _, x := range q {
				if x.Share < last.Share || x.Share > 1 || x.MS < last.MS {
					return bad("quantiles do not rise")
				}
				last = x
			}
		}
	}
	return nil
}
