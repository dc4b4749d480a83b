package observe

import (
	"hash/fnv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// keptHold is a hold for those who compare it with holds that other processes saw.
type keptHold struct {
	lk    *lock
	c     *client
	begin bounds
	end   bounds
	ended bool
	mark  uint32
}

// bounds are the first and the last instant at which a command can have run.
type bounds [2]protocol.Instant

// ran is when the command at hand ran, or an earlier one of the same client.
func (o *Observer) ran(a *attempt, at protocol.Instant) bounds {
	if at < o.line[1] {
		return bounds{at.Add(-a.took), at}
	}
	return o.line
}

// took is how long the command at hand and its reply were under way at most.
func (o *Observer) took() time.Duration { return o.line[1].Sub(o.line[0]) }

// keeps begins to write down a hold.
func (o *Observer) keeps(lk *lock, h *hold, ran bounds) {
	switch {
	case o.opts.Holds == 0 || o.keptUntil != 0:
	case len(o.kept) == o.opts.Holds:
		o.keptUntil = ran[0]
	default:
		mark := fnv.New32a()
		_, _ = mark.Write([]byte(h.value))
		o.kept = append(o.kept, keptHold{lk: lk, c: h.c, begin: ran, end: ran, mark: mark.Sum32()})
		h.kept = len(o.kept)
	}
}

// shows notes that a holder shows by the command at hand that it believes to hold.
func (o *Observer) shows(h *hold) {
	if h.kept > 0 {
		o.kept[h.kept-1].end = o.line
	}
}

// ends notes the end of a hold. It is known only where the holder shows it: one that tries again has left some time before.
func (o *Observer) ends(h *hold) {
	if h.kept > 0 {
		k := &o.kept[h.kept-1]
		k.ended = k.end == o.line
	}
}

// holds are those that were kept and began while the clock was known.
func (o *Observer) holds(clock *comparisons) overlaps.Seen {
	from, to, ahead, off := clock.known()
	seen := overlaps.Seen{ClockErrorUS: off.Microseconds() + 2, Keys: []overlaps.Key{}, Clients: []overlaps.Client{}, Holds: []overlaps.Hold{}} // stamps are whole microseconds
	if to <= from {
		seen.NotSeen = append(seen.NotSeen, "the clock was not compared with the server's TIME, at the start and at the end")
	}
	if clock.stopped {
		seen.NotSeen = append(seen.NotSeen, "the clock was not compared for longer than "+longestUncompared.String()+": what came after that is left out")
	}
	for _, f := range o.families {
		if f.beyond > 0 {
			seen.NotSeen = append(seen.NotSeen, "there were more keys than are remembered")
			break
		}
	}
	if o.keptUntil != 0 {
		to = min(to, o.keptUntil)
		seen.NotSeen = append(seen.NotSeen, "there were more holds than are kept: later ones are left out")
	}
	if clock.n == 0 {
		return seen
	}
	seen.From, seen.To = from.Add(-ahead).Time().UTC(), max(from, to).Add(-ahead).Time().UTC()
	keys, clients := map[*lock]int{}, map[*client]int{}
	since := func(at protocol.Instant) int64 { return int64(at.Sub(from) / time.Microsecond) }
	for _, k := range o.kept {
		if k.begin[0] < from || k.begin[1] > to {
			continue
		}
		if k.end[1] > to {
			k.end, k.ended = bounds{max(k.begin[1], min(k.end[0], to)), to}, false
		}
		if _, known := keys[k.lk]; !known {
			keys[k.lk] = len(keys)
			seen.Keys = append(seen.Keys, overlaps.Key{DB: k.lk.id.db, Name: k.lk.id.name})
		}
		if _, known := clients[k.c]; !known {
			clients[k.c] = len(clients)
			v := k.c.leading()
			seen.Clients = append(seen.Clients, overlaps.Client{Addr: k.c.addr, Name: o.names[k.c.addr].Name, Kind: v.kind, Dialect: v.dialect})
		}
		seen.Holds = append(seen.Holds, overlaps.Hold{
			Key: keys[k.lk], Client: clients[k.c], Begin: [2]int64{since(k.begin[0]), since(k.begin[1])},
			End: [2]int64{since(k.end[0]), since(k.end[1])}, Ended: k.ended, Mark: k.mark,
		})
	}
	return seen
}

// comparisons are what TIME told of a source's clock: by how much its stamps are ahead of the server's clock. Of each stretch of time the
// comparison with the narrowest bounds counts, as a reply that was held up on its way says little.
type comparisons struct {
	n           int
	first, last protocol.Instant
	began       protocol.Instant // of this stretch
	best        [2]time.Duration // of this stretch
	low, high   time.Duration    // of the stretches before it, together
	over        int              // of them
	stopped     bool             // there was none for too long
}

const (
	clockStretch      = 10 * time.Second
	longestUncompared = time.Minute
)

// take takes in that at an instant the stamps were ahead by something between two bounds.
func (c *comparisons) take(at protocol.Instant, low, high time.Duration) {
	switch {
	case c.stopped || high < low:
		return
	case c.n > 0 && at.Sub(c.last) > longestUncompared:
		c.stopped = true
		return
	case c.n == 0:
		c.first, c.began, c.best = at, at, [2]time.Duration{low, high}
	case at.Sub(c.began) >= clockStretch:
		c.corrected(at, low, high)
	case high-low < c.best[1]-c.best[0]:
		c.best = [2]time.Duration{low, high}
	}
	c.n++
	c.last = max(c.last, at)
}

// corrected begins another stretch: from here on the stamps are ahead by something between these bounds.
func (c *comparisons) corrected(at protocol.Instant, low, high time.Duration) {
	c.low, c.high = c.all()
	c.over++
	c.began, c.best = at, [2]time.Duration{low, high}
}

// all are the bounds of all stretches together.
func (c *comparisons) all() (low, high time.Duration) {
	if c.over == 0 {
		return c.best[0], c.best[1]
	}
	return min(c.low, c.best[0]), max(c.high, c.best[1])
}

// known is from when to when the clock is known, by how much it is ahead, and by how much that may be off.
func (c *comparisons) known() (from, to protocol.Instant, ahead, off time.Duration) {
	low, high := c.all()
	return c.first, c.last, low + (high-low)/2, (high-low)/2 + 1
}
