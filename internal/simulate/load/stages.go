package load

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// kind is a fleet that today's can become.
type kind struct {
	name, what string
	becomes    func(c *sim.Client)
	every      int // how many old clients there are for one that is changed
}

var stages = []kind{
	{"legacy", "the old clients as they are", func(*sim.Client) {}, 1},
	{"bridge, half", "half of the old clients are Go services in stage bridge", toBridge, 2},
	{"bridge", "all are Go services in stage bridge", toBridge, 1},
	{"modern", "all are Go services in stage modern", toModern, 1},
	{"sidecar", "the old clients as they are, behind sidecars in stage bridge", toSidecar, 1},
}

// Composition is a fleet as one stage of its migration makes it.
type Composition struct {
	Name, What string
	Fleet      *sim.Fleet
}

// Compositions are a fleet at each stage, as it is first. One without old clients has no other.
func Compositions(fleet *sim.Fleet) (all []Composition) {
	for _, k := range stages {
		f := *fleet
		f.Clients = slices.Clone(fleet.Clients)
		n := 0
		for i := range f.Clients {
			if c := &f.Clients[i]; c.Scheme == model.Legacy {
				if n%k.every == 0 {
					k.becomes(c)
				}
				n++
			}
		}
		if all = append(all, Composition{k.name, k.what, &f}); n == 0 {
			break
		}
	}
	return all
}

// What package compat does without other options: see compat.Options.
const (
	memberTTL    = 30 * time.Second
	memberLag    = time.Second
	memberDelay  = 250 * time.Millisecond
	memberPoll   = time.Second // of a waiter that hears of changes
	longestClaim = 3 * time.Second
)

// A waiter has its place in the queue, and is told when the lock is its own. What it hears by client tracking makes it ask only
// where an old client has deleted a key.
func toBridge(c *sim.Client) {
	c.Scheme, c.Queue = model.Bridge, true
	c.Yield = c.Dialect.Poll + c.Dialect.Poll/5
	c.Renew = min(memberTTL, c.Lease) / 3
	c.Lease, c.Grace, c.Settle, c.Claim = memberTTL, memberLag+memberDelay, memberDelay, longestClaim
	c.Poll = memberPoll
}

// toModern is a member of package compat whose namespace is in stage modern: it waits for no old expiry.
func toModern(c *sim.Client) {
	toBridge(c)
	c.Grace, c.Yield = -1, 0
}

func toSidecar(c *sim.Client) {
	c.Scheme, c.Behind = model.Sidecar, c.Name
	c.Grace, c.Settle = memberLag+memberDelay, memberDelay
	c.Renew = c.Lease / 3
}
