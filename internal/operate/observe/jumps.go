package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// A client's clock that is stepped moves all its later values by the step. A lead cannot be too large by a
// delay, and several in a row are not too small by the same one, so a step shows as a run of leads that
// agree with each other and not with the level before. A client that begins to take another lease looks the
// same: leases are round numbers, so a round step is not reported.
const (
	leastStep    = 200 * time.Millisecond
	forwardRun   = 4 // leads that a step forward wants: none can be too large
	backwardRun  = 8 // and one back, which delays imitate
	roundStep    = 500 * time.Millisecond
	roundStepOff = 10 * time.Millisecond
)

// jump are the leads of a run that is not yet long enough.
type jump struct {
	kept      []lead
	low, high time.Duration
}

// take takes in a lead, and tells when it completes a jump of the clock and of what size.
func (s *leads) take(x lead, quantum time.Duration) (by time.Duration, jumped bool) {
	tolerance := leastStep + 2*max(quantum, s.quantum)
	level := s.top[0]
	off := x.ahead - level
	if s.n < topLeads || level-s.top[topLeads-1] > tolerance/8 || off.Abs() <= tolerance {
		s.acquit(quantum)
		s.add(x, quantum)
		return 0, false
	}
	run := &s.jump
	low, high := min(run.low, x.ahead), max(run.high, x.ahead)
	if len(run.kept) > 0 && ((off > 0) != (run.low > level) || high-low > tolerance/8+quantum) {
		s.acquit(quantum)
	}
	if len(run.kept) == 0 {
		low, high = x.ahead, x.ahead
	}
	run.kept, run.low, run.high = append(run.kept, x), low, high
	if off > 0 && len(run.kept) < forwardRun || off < 0 && len(run.kept) < backwardRun {
		return 0, false
	}
	by = run.high - level
	round := (by - by.Round(roundStep)).Abs() < roundStepOff+quantum
	if back := s.former != 0 && (run.high-s.former).Abs() <= tolerance; round || back { // a clock does not jump there and back
		s.acquit(quantum)
		return 0, false
	}
	// What was measured before is of the old clock.
	*s = leads{former: level, quantum: s.quantum, of: s.of, trip: s.trip, jump: s.jump, clock: unbounded}
	s.acquit(quantum)
	return by, true
}

// acquit takes them for what leads are as a rule.
func (s *leads) acquit(quantum time.Duration) {
	for _, x := range s.jump.kept {
		s.add(x, quantum)
	}
	s.jump.kept = s.jump.kept[:0]
}

// step is the last one of a host.
type step struct {
	at protocol.Instant
	by time.Duration
}

// stepped reports that a client's clock has jumped, once for all connections of its host.
func (o *Observer) stepped(c *client, key traffic.Key, at protocol.Instant, by time.Duration) {
	host := hostOf(c.addr)
	if len(o.steps) >= maxClients {
		clear(o.steps)
	}
	last, before := o.steps[host]
	o.steps[host] = step{at, by}
	if before && at.Sub(last.at) < time.Minute && (by-last.by).Abs() < leastStep {
		return
	}
	o.hazard(event{At: at, Hazard: "step", Key: key, By: c, Note: fmt.Sprintf("its clock jumped by %+.3f s", by.Seconds())})
}

// flushed reports the locks that a FLUSHDB (or FLUSHALL, db -1) took from their holders.
func (o *Observer) flushed(c *client, db int, at protocol.Instant) {
	ids := slices.SortedFunc(maps.Keys(o.locks), func(a, b traffic.Key) int {
		return cmp.Or(cmp.Compare(a.DB, b.DB), cmp.Compare(a.Name, b.Name))
	})
	for _, id := range ids {
		lk := o.locks[id]
		h := lk.holder
		if h == nil || db >= 0 && id.DB != db || o.unwanted(id.Name) {
			continue
		}
		lost := event{At: at, Hazard: "lost-update", Key: id, By: c, Victim: h.c, Note: "a flush took the key away under its holder"}
		since := h.at
		if (h.form.kind != Legacy || h.form.forever) && (h.ttl == 0 || at.Sub(since) < h.ttl) {
			o.hazard(lost)
		}
		o.judge(h, lk, func(lease time.Duration) {
			if at.Sub(since) < lease {
				o.hazard(lost)
			}
		})
		o.loses(lk, h, "lost-update", at)
	}
}
