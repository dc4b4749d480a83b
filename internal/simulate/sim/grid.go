package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Schemes are the fleets that a sweep compares, by the share of bridge clients among legacy ones. The last is tokens alone.
var Schemes = []string{"legacy", "mixed-25", "mixed-50", "mixed-75", "bridge", "modern"}

// Cell is one point of the grid: a fleet near its server.
type Cell struct {
	Scheme  string
	Skew    time.Duration // of one client's clock: a legacy one's where there is one
	Lease   time.Duration // and the TTL of token holders
	Hold    time.Duration
	Clients int
	Poll    time.Duration // of the old clients
}

// leases is how many leases a run of a cell lasts.
const leases = 4

// old returns how many of the clients are legacy ones.
func (c *Cell) old() (legacy int, ok bool) {
	quarters := slices.Index(Schemes, c.Scheme)
	return c.Clients - min(quarters, 4)*c.Clients/4, quarters >= 0
}

// Validate checks a cell's scheme and sizes.
func (c *Cell) Validate() error {
	if _, ok := c.old(); !ok {
		return fmt.Errorf("no scheme is named %q; known are %s", c.Scheme, strings.Join(Schemes, ", "))
	}
	switch {
	case c.Lease <= 0 || c.Hold <= 0 || c.Poll <= 0:
		return fmt.Errorf("lease, hold and poll must be above zero, not %v, %v and %v", c.Lease, c.Hold, c.Poll)
	case c.Clients < 1 || c.Clients > 200:
		return fmt.Errorf("1 to 200 clients, not %d", c.Clients)
	case c.Scheme != "legacy" && 2*c.terms().CommandDelay >= c.Lease:
		return fmt.Errorf("a lease of %v is too short for package compat: it must be more than twice the longest delay of a command, %v", c.Lease, c.terms().CommandDelay)
	}
	return nil
}

// terms are those of the members of package compat in a cell: its lease is the old clients', and their TTL.
func (c *Cell) terms() protocol.MemberTerms {
	return protocol.MemberTerms{Dialect: protocol.JedisMS, TTL: c.Lease, Shortest: c.Lease}.WithDefaults()
}

// Fleet makes the cell's fleet.
func (c *Cell) Fleet() *Fleet {
	old, _ := c.old()
	leg := Spread(50*time.Microsecond, 150*time.Microsecond, time.Millisecond, 5*time.Millisecond)
	f := &Fleet{Network: Network{Request: leg, Reply: leg, Timeout: time.Second}, Until: leases * c.Lease, Stop: true}
	for i := range c.Clients {
		scheme := "bridge"
		switch {
		case i < old:
			scheme = "legacy"
		case c.Scheme == "modern":
			scheme = "modern"
		}
		f.Clients = append(f.Clients, c.client(i, scheme))
	}
	f.Clients[0].Offset = c.Skew
	return f
}

func (c *Cell) client(i int, scheme string) Client {
	member := model.Member{
		Name: fmt.Sprintf("%s-%d", scheme, i+1), Dialect: protocol.JedisMS, Key: "orders", Owner: fmt.Sprintf("%08x-0000-4000-8000-000000000000", i+1),
		Lease: c.Lease, Poll: c.Poll, Patience: time.Hour, Release: protocol.JedisMS.Release,
	}
	if scheme != "legacy" {
		member = model.CompatMember(member, c.terms(), scheme == "modern")
		member.Fence = protocol.FenceKey(member.Key)
	}
	rest := Uniform(0, c.Lease/4)
	return Client{Member: member, Hold: Fixed(c.Hold), First: rest, Think: rest}
}

// Left is what is left of a lease when the work ends: the skew at which a live lease is stolen.
func (c *Cell) Left() time.Duration { return c.Lease - c.Hold }

// Breaks tells that the scheme breaks here by the closed form.
//
// A client ahead by s takes a lease for expired that has less than s left; a client behind by s writes
// leases that everybody else takes for expired by s too early. Work leaves lease - hold at its end. So
// two legacy clients exclude each other as long as |s| <= lease - hold, whatever their number. A
// bridge judges by the server's clock: it is early only where a legacy clock is behind by more than the
// grace and what is left together. Token locks look at no clock but their own, and only at its rate.
func (c *Cell) Breaks() bool { return c.breaks(0) }

// Promised tells that the scheme promises to hold here. The closed form knows no delays; work begins up
// to an attempt's six legs on the network after its lease was computed.
func (c *Cell) Promised() bool {
	network := c.Fleet().Network
	return !c.breaks(3 * (network.Request.Max() + network.Reply.Max()))
}

func (c *Cell) breaks(slack time.Duration) bool {
	old, _ := c.old()
	left := c.Left() - slack // below zero the work overruns its lease, with any clock
	stolen := old >= 2 && c.Skew.Abs() > left
	misled := old < c.Clients && -c.Skew > left+c.terms().Grace()
	return old > 0 && (left < 0 || stolen || misled)
}

// Outcome is what the runs of a cell came to.
type Outcome struct {
	Cell
	Sum
}

// Unpromised counts the overlaps that break a promise: any where the scheme promises to hold, and any
// between two clients of the new schemes.
func (o *Outcome) Unpromised() int64 {
	if o.Promised() {
		return o.Overlaps
	}
	return o.Pairs[2][2] + o.Pairs[2][3] + o.Pairs[3][2] + o.Pairs[3][3]
}

// Grid is the axes of a sweep. Two maps are drawn for each scheme: skew against lease with the hold time
// fixed, and skew against hold time with the lease fixed.
type Grid struct {
	Schemes []string
	Skews   []time.Duration
	Leases  []time.Duration
	Holds   []time.Duration
	Lease   time.Duration // while the hold time varies
	Hold    time.Duration // while the lease varies
}

// StandardGrid is the grid of a sweep that is given no other.
func StandardGrid() Grid {
	return Grid{
		Schemes: Schemes,
		Skews:   Range(-12*time.Second, 12*time.Second, time.Second),
		Leases:  Range(3*time.Second, 12*time.Second, time.Second),
		Holds:   Range(time.Second, 12*time.Second, time.Second),
		Lease:   10 * time.Second,
		Hold:    2 * time.Second,
	}
}

// Range lists the durations from lo to hi.
func Range(lo, hi, step time.Duration) []time.Duration {
	var all []time.Duration
	for d := lo; d <= hi && step > 0; d += step {
		all = append(all, d)
	}
	return all
}

// Cells lists the grid's cells: for each scheme first the map of leases, then that of hold times.
func (g *Grid) Cells() []Cell {
	var cells []Cell
	for _, scheme := range g.Schemes {
		row := func(lease, hold time.Duration) {
			for _, skew := range g.Skews {
				cells = append(cells, Cell{Scheme: scheme, Skew: skew, Lease: lease, Hold: hold, Clients: 4, Poll: lease / 40})
			}
		}
		for _, lease := range g.Leases {
			row(lease, g.Hold)
		}
		for _, hold := range g.Holds {
			row(g.Lease, hold)
		}
	}
	return cells
}
