package observe

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// leads are those of one client on one family of keys. A lead is by how much the expiry that it writes is ahead of the server's clock:
// offset + lease + extra - delay - rounding, with delay >= 0 and 0 <= rounding < quantum. So the largest is the closest to offset + lease +
// extra, and one that is far smaller is of a shorter lease, or of a command that was long on its way.
type leads struct {
	thinned[lead]
	top     [topLeads]time.Duration // the largest, falling
	least   lead
	quantum time.Duration
	of      *protocol.Dialect // that wrote the values
	// trip is the shortest time between two commands of one attempt: a whole round trip and more, so that
	// the shortest delay of one way is below it.
	trip   time.Duration
	jump   jump
	former time.Duration // the largest lead before the last jump
	clock  bounds        // of the offset, by what it did as a waiter
}

// lead is one of them, and the time since the same connection's command before: no command was longer on its way.
type lead struct {
	at           protocol.Instant
	ahead, since time.Duration
}

const (
	topLeads  = 4
	mostLeads = 128
	// coarse is from where on a step of the client's clock counts for more than delays.
	coarse = 50 * time.Millisecond
)

func (s *leads) add(x lead, quantum time.Duration) {
	s.quantum = max(s.quantum, quantum)
	if s.n == 0 || x.ahead < s.least.ahead {
		s.least = x
	}
	at := int(min(s.n, topLeads))
	s.keep(x, mostLeads)
	for at > 0 && s.top[at-1] < x.ahead {
		at--
	}
	if at < topLeads {
		copy(s.top[at+1:], s.top[at:])
		s.top[at] = x.ahead
	}
}

// join takes in what another connection of the same client has seen.
func (s *leads) join(other *leads) {
	s.of, s.clock = other.of, s.clock.and(other.clock)
	if s.trip == 0 || other.trip > 0 && other.trip < s.trip {
		s.trip = other.trip
	}
	n := s.n + other.n
	for _, x := range slices.Concat(other.kept, other.jump.kept) {
		s.add(x, other.quantum)
	}
	if other.n > int64(len(other.kept)) {
		s.add(other.least, other.quantum)
	}
	s.n = n
}

// estimate returns offset + lease + extra and how far off that may be.
func (s *leads) estimate() (sum, off time.Duration) {
	kept := int(min(s.n, topLeads))
	spread := s.top[0] - s.top[kept-1] // how rare the fastest are: what the next fastest would add
	lost := s.quantum / 2              // to rounding, give or take as much
	if s.quantum >= coarse {
		spread = 0 // is rounding
		lost = s.rounding() / 2
	}
	trip := s.trip
	if trip == 0 || trip > 50*time.Millisecond {
		trip = min(max(2*spread, 2*time.Millisecond), 50*time.Millisecond)
	}
	// The fastest came after some delay in (0, trip): its middle, give or take the rest.
	off = trip/2 + lost + spread
	if kept == 1 {
		off += 10 * time.Millisecond
	}
	return s.top[0] + trip/2 + lost, off
}

// rounding returns how much rounding can have taken from the largest lead. All of one lease lie within one
// step of the clock (but for delays), so what their spread leaves of it is the most.
func (s *leads) rounding() time.Duration {
	var near []time.Duration
	for _, x := range s.kept {
		if s.top[0]-x.ahead <= s.quantum+coarse {
			near = append(near, x.ahead)
		}
	}
	if len(near) == 0 {
		return s.quantum
	}
	slices.Sort(near)
	low := 0
	if len(near) >= 4 {
		low = 1 + len(near)/16 // one that was held up on its way makes the spread look larger
	}
	return min(max(s.quantum-(s.top[0]-near[low]), 0), s.quantum)
}

// below is how far the smallest lead is below the largest, and whether that is a shorter lease for sure: it was
// smaller by more than the command can have been on its way, or such leads are no exception. It is 0 where it is no more than delays.
func (s *leads) below(lease time.Duration) (by time.Duration, varies bool) {
	near := max(200*time.Millisecond, lease/10) + 2*s.quantum
	if len(s.jump.kept) == 0 && s.top[0]-s.least.ahead <= near {
		return 0, false
	}
	all := slices.Concat(s.kept, s.jump.kept, []lead{s.least})
	few := 0
	for i, x := range all {
		late := s.top[0] - x.ahead
		if late <= near || late >= lease {
			continue // no lease is over as it is written: the command was held up, or the clock is another one
		}
		if i < len(all)-1 {
			few++
		}
		by = max(by, late)
		varies = varies || late > x.since+coarse
	}
	return by, varies || few > 1 && few*50 > len(all)
}
