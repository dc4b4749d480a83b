package observe

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// observers are those of all servers that are watched. A client has a connection to each: grouped by host or name these make one
// row; connections stay apart, and their rows name the server.
type observers []*Observer

// watched is when the first command came and how long was watched: from then to the last command, or the live window.
func (all observers) watched(live *window) (start time.Time, seconds float64) {
	var first, last protocol.Instant // 0 for none
	for _, o := range all {
		if first == 0 || o.first != 0 && o.first < first {
			first = o.first
		}
		last = max(last, o.last)
	}
	switch {
	case live == nil:
		return first.Time(), last.Sub(first).Seconds()
	case first == 0:
		return live.began.UTC(), live.seconds()
	}
	return first.Time(), live.seconds()
}

// report says what is known so far; live is nil for a file.
func (all observers) report(live *window) Report {
	r := Report{
		Complete: true, Hazards: map[string]int64{},
		Clients: []Row{}, Overlaps: []OverlapRow{}, Events: []EventRow{},
	}
	r.Started, r.WindowSeconds = all.watched(live)
	for _, row := range all.rows() {
		r.Clients = append(r.Clients, row.Row)
	}
	for _, o := range all {
		r.Counts.add(o.counts)
		r.Complete = r.Complete && o.Keys.IsComplete()
		r.Acquired, r.Hazards = profile.Sum(r.Acquired, o.acquired), profile.Sum(r.Hazards, o.hazards)
		r.OverlapCount += o.overlapN
		for _, v := range o.overlaps {
			r.Overlaps = append(r.Overlaps, o.overlapRow(v))
		}
		for _, e := range o.events {
			r.Events = append(r.Events, e.row())
		}
	}
	slices.SortStableFunc(r.Overlaps, func(a, b OverlapRow) int { return a.From.Compare(b.From) })
	slices.SortStableFunc(r.Events, func(a, b EventRow) int { return a.At.Compare(b.At) }) // what wants a lease is told at the end
	return r
}

// group is one row: clients of one host or name that do different things have a row each.
type group struct {
	name, server string // the server that a connection leads to, where there are several
	vote
}

// rowOf is the row that a client belongs to.
func (all observers) rowOf(c *client) group {
	id := group{name: c.o.rowName(c), vote: c.leading()}
	if len(all) > 1 && c.o.opts.Group != ByHost && id.name == c.addr {
		id.server = c.o.server
	}
	return id
}

// groups puts the clients together that make one row.
func (all observers) groups() map[group][]*client {
	groups, acquired := map[group][]*client{}, map[group]int64{}
	var silent []*client // released only: what they are, another connection of theirs says
	for _, o := range all {
		for _, c := range o.clients {
			if len(c.votes) > 0 {
				id := all.rowOf(c)
				groups[id] = append(groups[id], c)
				acquired[id] += c.acquired
			} else if c.released > 0 {
				silent = append(silent, c)
			}
		}
	}
	for _, c := range silent {
		best, most := all.rowOf(c), int64(-1)
		best.vote = vote{}
		for id, n := range acquired {
			if id.name == best.name && id.server == best.server && (n > most || n == most && id.kind+id.dialect < best.kind+best.dialect) {
				best, most = id, n
			}
		}
		groups[best] = append(groups[best], c)
	}
	return groups
}

// clientRow is a row and the connections that make it.
type clientRow struct {
	Row
	members     []*client
	clock       *client           // the one of them that tells the clock best, nil for none
	uses        map[string][]*use // by family
	poll, pause profile.Spread
}

// rows are those of all clients, in the order of a report.
func (all observers) rows() (rows []clientRow) {
	for _, o := range all {
		o.solve(true)
	}
	for id, members := range all.groups() {
		rows = append(rows, newRow(id, members))
	}
	slices.SortFunc(rows, byKind)
	return rows
}

func newRow(id group, members []*client) clientRow {
	slices.SortFunc(members, func(a, b *client) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.o.server, b.o.server))
	})
	var lead *client // a silent one only where there is no other
	for _, c := range members {
		if lead == nil || c.leading() == id.vote && (lead.leading() != id.vote || c.tries > lead.tries) {
			lead = c
		}
	}
	peer := lead.o.names[lead.addr]
	row := clientRow{members: members, uses: map[string][]*use{}, Row: Row{
		Addr: id.name, Server: id.server, Host: hostOf(lead.addr), Name: peer.Name, User: peer.User, Lib: peer.Lib, Connections: len(members),
		Kind: cmp.Or(id.kind, Unknown), Dialect: id.dialect, Sidecar: lead.sidecar, Sent: map[string]int64{},
	}}
	row.DialectOr, row.DialectDoubt = lead.other()
	families := map[string]int64{}
	var poll, pause, hold, wait []*samples
	for _, c := range members {
		row.Tries += c.tries
		row.Databases = append(row.Databases, c.databases...)
		row.Acquired += c.acquired
		row.Released += c.released
		row.Sent = profile.Sum(row.Sent, c.sent)
		poll, pause = append(poll, &c.poll), append(pause, &c.pause)
		for f, u := range c.uses {
			families[f] += u.n
			row.uses[f] = append(row.uses[f], u)
			hold, wait = append(hold, &u.hold), append(wait, &u.wait)
		}
		if c.clock.known && (row.clock == nil || c.clock.off < row.clock.clock.off) {
			row.clock = c
		}
	}
	row.HoldP50MS, row.WaitP50MS = spread(hold...).At(0.5), spread(wait...).At(0.5)
	row.poll, row.pause = spread(poll...), spread(pause...)
	row.Pauses, row.PauseMaxMS = row.pause.N, row.pause.Most()
	if row.poll.N > 0 {
		// A sleep is often longer than asked for, never shorter; only a first command that was held up on its
		// way makes an interval look shorter. So it is the low end, but not the lowest.
		row.PollMS = math.Round(row.poll.At(0.3))
	}
	slices.Sort(row.Databases)
	row.Databases = slices.Compact(row.Databases)
	row.Keys = byCount(families)
	row.Keys = row.Keys[:min(len(row.Keys), maxKeysShown)]
	if len(row.Keys) > 0 && row.Kind == Legacy {
		row.Lease = leaseOf(members, row.Keys[0]).measured()
	}
	if row.LeaseMS == 0 && id.dialect != setnxUUID {
		row.Lease = ttlOf(members, "").measured()
	}
	if row.clock != nil && (row.Kind == Legacy || row.Kind == Modern) { // a token may be a time
		row.skew()
	}
	return row
}

// leaseOf is the lease of a family by what the servers of these clients have seen: where some are sure, by those. Its bounds are those of all.
func leaseOf(members []*client, family string) (all lease) {
	for _, c := range members {
		l := c.lease(family)
		switch better := all.doubt != "" && l.doubt == ""; {
		case l.likely == 0:
		case all.likely == 0 || better:
			all = l
		case l.doubt == all.doubt || all.doubt != "":
			all.likely, all.least, all.most, all.varies = min(all.likely, l.likely), min(all.least, l.least), max(all.most, l.most), all.varies || l.varies
		}
	}
	return all
}

// ttlOf is the lease of locks that live by their TTL; of all families for an empty name.
func ttlOf(members []*client, family string) lease {
	var span bounds
	for _, c := range members {
		for name, u := range c.uses {
			if (family == "" || name == family) && u.ttl.high > 0 {
				span.reach(u.ttl.low)
				span.reach(u.ttl.high)
			}
		}
	}
	return lease{likely: span.high, least: span.low, most: span.high, varies: span.low < span.high, from: "ttl"}
}

// measured is a lease as it is written down.
func (l lease) measured() profile.Lease {
	if l.likely == 0 {
		return profile.Lease{}
	}
	return profile.Lease{LeaseMS: ms(l.likely), LeaseFrom: l.from, LeaseLeastMS: ms(l.least), LeaseMostMS: ms(l.most), LeaseVaries: l.varies, LeaseDoubt: l.doubt}
}

// skew writes down the clock of a row. One host is expected to have one clock: connections that disagree widen the bar. On several
// servers each is against the clock of its own one.
func (r *clientRow) skew() {
	own := r.clock.clock
	r.SkewMS, r.SkewErrorMS = ref(round1(ms(own.offset))), ref(round1(ms(own.off)))
	for _, c := range r.members {
		if other := c.clock; other.known {
			*r.SkewErrorMS = max(*r.SkewErrorMS, round1(ms((other.offset-own.offset).Abs()-other.off)))
		}
	}
}
