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

// A client's clock that is stepped moves all its later values by the step. A sample cannot be too large by a
// delay, and several in a row are not too small by the same one, so a step shows as a run of samples that
// agree with each other and not with the level before. A client that begins to take another lease looks the
// same: leases are round numbers, so a round step is not reported.
const (
	leastStep    = 200 * time.Millisecond
	forwardRun   = 4 // samples that a step forward wants: none can be too large
	backwardRun  = 8 // and one back, which delays imitate
	roundStep    = 500 * time.Millisecond
	roundStepOff = 10 * time.Millisecond
)

// suspects are the samples of a run that is not yet long enough.
type suspects struct {
	kept      []time.Duration
	low, high time.Duration
}

// take takes in a sample, and tells when it completes a step and of what size.
func (s *sums) take(x, quantum time.Duration) (by time.Duration, stepped bool) {
	tolerance := leastStep + 2*max(quantum, s.quantum)
	level := s.top[0]
	off := x - level
	if s.n < topSums || level-s.top[topSums-1] > tolerance/8 || off.Abs() <= tolerance {
		s.acquit(quantum)
		s.add(x, quantum)
		return 0, false
	}
	run := &s.run
	if len(run.kept) > 0 {
		low, high := min(run.low, x), max(run.high, x)
		if (off > 0) != (run.low > level) || high-low > tolerance/8+quantum {
			s.acquit(quantum)
		}
	}
	if len(run.kept) == 0 {
		run.low, run.high = x, x
	}
	run.kept = append(run.kept, x)
	run.low, run.high = min(run.low, x), max(run.high, x)
	if off > 0 && len(run.kept) < forwardRun || off < 0 && len(run.kept) < backwardRun {
		return 0, false
	}
	by = run.high - level
	if (by - by.Round(roundStep)).Abs() < roundStepOff+quantum {
		s.acquit(quantum)
		return 0, false
	}
	s.n, s.top, s.readings, s.stretch = 0, [topSums]time.Duration{}, nil, 0 // what was measured before is of the old clock
	s.acquit(quantum)
	return by, true
}

// acquit takes the suspects for what samples are as a rule.
func (s *sums) acquit(quantum time.Duration) {
	for _, x := range s.run.kept {
		s.add(x, quantum)
	}
	s.run.kept = s.run.kept[:0]
}

// step is the last one of a host.
type step struct {
	at protocol.Instant
	by time.Duration
}

// stepped reports that a client's clock has jumped, once for all connections of its host.
func (o *Observer) stepped(c *client, key string, at protocol.Instant, by time.Duration) {
	host := hostOf(c.addr)
	if len(o.steps) >= o.opts.MaxClients {
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
		if h == nil || db >= 0 && id.DB != db || o.opts.Match != nil && !o.opts.Match(id.Name) {
			continue
		}
		lost := event{At: at, Hazard: "lost-update", Key: id.Name, By: c, Victim: h.c, Note: "a flush took the key away under its holder"}
		since := h.at
		switch {
		case h.shape.kind != Legacy || h.shape.forever:
			if h.c.ttl == 0 || at.Sub(since) < h.c.ttl {
				o.hazard(lost)
			}
		default:
			o.later(func() {
				if lease, ok := o.lease(lk.family); ok && at.Sub(since) < lease {
					o.hazard(lost)
				}
			})
		}
		o.loses(lk, h, "lost-update", at)
	}
}
