package observe

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Event is something that happened.
type Event struct {
	At     protocol.Instant
	Hazard string // one of the hazards' names; empty where What says what happened
	What   string // acquired, released, overlap
	Key    string
	By     *client
	Victim *client
	Note   string
}

// Overlap is two holders at once.
type Overlap struct {
	Key               string
	DB                int
	First, Second     *client
	FirstAt, SecondAt protocol.Instant // when each acquired
	From, To          protocol.Instant
	Cause             string
}

// Who names a client in a report.
type Who struct {
	Addr string `json:"addr"`
	Name string `json:"name,omitempty"`
}

// EventRow is an event in JSON.
type EventRow struct {
	At     time.Time `json:"at"`
	Hazard string    `json:"hazard,omitempty"`
	What   string    `json:"what,omitempty"`
	Kind   string    `json:"-"` // of By
	Key    string    `json:"key"`
	By     *Who      `json:"by,omitempty"`
	Victim *Who      `json:"victim,omitempty"`
	Note   string    `json:"note,omitempty"`
}

// OverlapRow is an overlap in JSON.
type OverlapRow struct {
	Key    string    `json:"key"`
	DB     int       `json:"db"`
	First  Holder    `json:"first"`
	Second Holder    `json:"second"`
	From   time.Time `json:"from"`
	To     time.Time `json:"to"`
	MS     float64   `json:"ms"`
	Cause  string    `json:"cause"`
}

// Holder is one side of an overlap.
type Holder struct {
	Who
	Kind     string    `json:"kind"`
	Dialect  string    `json:"dialect,omitempty"`
	Acquired time.Time `json:"acquired"`
}

// Row is one client, host or name.
type Row struct {
	Addr        string   `json:"addr"`
	Server      string   `json:"server,omitempty"` // that a connection leads to, where there are several
	Host        string   `json:"host"`
	Name        string   `json:"name"`
	User        string   `json:"user,omitempty"`
	Lib         string   `json:"lib,omitempty"`
	Connections int      `json:"connections"`
	Kind        string   `json:"kind"`
	Dialect     string   `json:"dialect"`
	LeaseMS     *float64 `json:"lease_ms"`
	LeaseFrom   string   `json:"lease_from,omitempty"` // given, fleet, round; ttl for tokens
	PollMS      *float64 `json:"poll_ms"`
	PollSamples int      `json:"poll_samples"`
	SkewMS      *float64 `json:"skew_ms"`
	SkewErrorMS *float64 `json:"skew_error_ms"`
	Samples     int64    `json:"samples"`
	Tries       int64    `json:"tries"`
	Acquired    int64    `json:"acquired"`
	Released    int64    `json:"released"`
	HoldP50MS   float64  `json:"hold_p50_ms"`
	HoldP95MS   float64  `json:"hold_p95_ms"`
	WaitP50MS   float64  `json:"wait_p50_ms"`
	WaitP95MS   float64  `json:"wait_p95_ms"`
	Keys        []string `json:"keys"`
	// Sent counts the commands with which it tried to take locks: SETNX, GETSET, SET NX, SET GET, SET, SETEX.
	Sent map[string]int64 `json:"sent"`
	// The time from its GET of an expired value to the GETSET, or SET, with which it takes the lock over: the
	// median and the longest, by the server's clock.
	PauseP50MS float64 `json:"takeover_pause_p50_ms"`
	PauseMaxMS float64 `json:"takeover_pause_max_ms"`
	Pauses     int64   `json:"takeover_pauses"`

	Hold, Wait samples `json:"-"`
}

// GhostRow is a value that nobody holds and that blocks until somebody comes.
type GhostRow struct {
	Key       string    `json:"key"`
	DB        int       `json:"db"`
	ExpiredAt time.Time `json:"expired_at"`
}

// Report is what was seen.
type Report struct {
	Server        string           `json:"-"`       // that was watched; empty for several, or a file
	Started       time.Time        `json:"started"` // server's clock
	WindowSeconds float64          `json:"window_seconds"`
	Commands      int64            `json:"commands"`
	LockCommands  int64            `json:"lock_commands"`
	LegacyOps     int64            `json:"legacy_commands"` // SETNX and GETSET of locks
	OtherOps      int64            `json:"other_setnx"`     // SETNX and GETSET of anything else
	LegacySets    int64            `json:"legacy_sets"`     // the same spelled SET NX or SET GET without a TTL, and blind SETs, of locks
	OtherSets     int64            `json:"other_sets"`      // SET NX and SET GET without a TTL of anything else
	Garbled       int64            `json:"unreadable_lines"`
	Crowded       int64            `json:"left_out"`      // commands of clients beyond the most that are remembered
	Complete      bool             `json:"keys_complete"` // the state of every key was known
	Refused       []string         `json:"refused"`       // reads of keys that the server refused: the command, and its words
	Clients       []Row            `json:"clients"`
	Hazards       map[string]int64 `json:"hazards"`
	Overlaps      []OverlapRow     `json:"overlaps"`
	OverlapCount  int64            `json:"overlap_count"`
	Events        []EventRow       `json:"events"` // hazards, the first of them
	Ghosts        []GhostRow       `json:"ghosts"`
}

func (o *Observer) hazard(e Event) {
	o.hazards[e.Hazard]++
	if e.By != nil {
		u := o.use(e.By, familyOf(e.Key))
		if u.hazards == nil {
			u.hazards = map[string]int64{}
		}
		u.hazards[e.Hazard]++
	}
	if len(o.events) < o.opts.MaxEvents {
		e.Key = strings.Clone(e.Key)
		o.events = append(o.events, e)
	}
	o.emit(e)
}

func (o *Observer) emit(e Event) {
	if o.opts.Emit != nil {
		o.opts.Emit(e)
	}
}

// Show makes an event a row.
func (o *Observer) Show(e Event) EventRow {
	return EventRow{At: e.At.Time(), Hazard: e.Hazard, What: e.What, Kind: e.kind(), Key: e.Key, By: o.who(e.By), Victim: o.who(e.Victim), Note: e.Note}
}

func (o *Observer) who(c *client) *Who {
	if c == nil {
		return nil
	}
	return &Who{Addr: c.addr, Name: o.names[c.addr].Name}
}

// Finish ends the window: judgements that waited for a lease are made.
func (o *Observer) Finish() {
	o.solve(true)
	waiting := o.deferred
	o.deferred = nil
	for _, judge := range waiting {
		judge()
	}
}

// Report says what is known so far. It may be called at any time.
func (o *Observer) Report() Report {
	o.solve(true)
	r := Report{
		Started: o.first.Time(), WindowSeconds: o.last.Sub(o.first).Seconds(), Commands: o.commands, LockCommands: o.lockOps,
		LegacyOps: o.legacyOps, OtherOps: o.otherOps, LegacySets: o.legacySets, OtherSets: o.otherSets, Garbled: o.garbled, Crowded: o.crowded, Complete: o.Keys.complete, Hazards: map[string]int64{}, OverlapCount: o.overlapN,
		Clients: []Row{}, Overlaps: []OverlapRow{}, Events: []EventRow{}, Ghosts: []GhostRow{},
	}
	for name, n := range o.hazards {
		r.Hazards[name] = n
	}
	for id, members := range o.groups() {
		r.Clients = append(r.Clients, o.row(id, members))
	}
	slices.SortFunc(r.Clients, byKind)
	for _, v := range o.overlaps {
		r.Overlaps = append(r.Overlaps, o.overlapRow(v))
	}
	for _, e := range o.events {
		r.Events = append(r.Events, o.Show(e))
	}
	r.Ghosts = o.ghosts()
	if len(r.Ghosts) > 0 {
		r.Hazards["ghost"] = int64(len(r.Ghosts))
	}
	return r
}

func byKind(a, b Row) int {
	return cmp.Or(kindOrder(a.Kind)-kindOrder(b.Kind), cmp.Compare(b.Acquired, a.Acquired), cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Server, b.Server))
}

func kindOrder(k string) int {
	return slices.Index([]string{Legacy, Bridge, Modern, Redisson, Unknown}, k)
}

// group is one row: clients of one host or name that do different things have a row each.
type group struct {
	name string
	vote
}

// groups puts the clients together that make one row.
func (o *Observer) groups() map[group][]*client {
	all := map[group][]*client{}
	var silent []*client // released only: what they are, another connection of theirs says
	for _, c := range o.clients {
		switch {
		case len(c.votes) > 0:
			id := group{o.rowName(c), c.leading()}
			all[id] = append(all[id], c)
		case c.released > 0:
			silent = append(silent, c)
		}
	}
	for _, c := range silent {
		best, most := group{name: o.rowName(c)}, int64(-1)
		for id, members := range all {
			var acquired int64
			for _, m := range members {
				acquired += m.acquired
			}
			if id.name == best.name && (acquired > most || acquired == most && id.kind+id.dialect < best.kind+best.dialect) {
				best, most = id, acquired
			}
		}
		all[best] = append(all[best], c)
	}
	return all
}

// leading returns what a client is. Most of its commands say it, where nothing that it did says better;
// known kinds win over unknown ones.
func (c *client) leading() vote {
	if c.blindSets > 0 {
		return vote{Legacy, blindSet}
	}
	var best vote
	var most int64 = -1
	for v, n := range c.votes {
		if v.kind == Unknown {
			n = 0
		}
		if n > most || n == most && v.kind+v.dialect < best.kind+best.dialect {
			best, most = v, n
		}
	}
	switch {
	case best.dialect == protocol.RedisDoc.Name && c.blindNames && c.sent["GETSET"] == 0 && c.expires():
		return vote{Legacy, blindSet} // the QueueLock of node-resque, which has not had to take a key over
	case best.dialect == setNXPX && c.timeToken != nil && c.readAfter > 0: // a time that others read
		return vote{Legacy, c.timeToken.Name}
	case best.dialect == setnxUUID || best.dialect == setnxOther:
		if c.expires() {
			return vote{Modern, setnxExpire}
		}
	case best.kind == Legacy && c.failures >= 3 && c.readAfter == 0 && c.sent["GETSET"] == 0 && c.wins > 0 && c.expires():
		return vote{Modern, setnxExpire} // a time that nobody reads
	case best.dialect == protocol.RedisPyFloat.Name && c.deletesFloatsBlindly():
		// redis-objects writes what redis-py writes, a second later; it deletes without a look.
		best.dialect = protocol.RedisObjects.Name
	}
	return best
}

// expires tells that an EXPIRE follows its SETNX. One that has won nothing does as those do that have.
func (c *client) expires() bool {
	wins, expired := c.wins, c.expired
	if wins == 0 {
		f := c.o.families[c.family()]
		if f == nil {
			return false
		}
		wins, expired = f.wins, f.expired
	}
	return expired > 0 && (wins-expired <= 1 || expired*10 >= wins*9)
}

// deletesFloatsBlindly: one that has released nothing does as the others of its family do.
func (c *client) deletesFloatsBlindly() bool {
	if c.blindDelete > 0 || c.getRelease > 0 {
		return c.getRelease == 0
	}
	f := c.o.families[c.family()]
	return f != nil && f.blind > 0 && f.looked == 0
}

// family returns the family of keys that a client uses most.
func (c *client) family() string {
	best := ""
	var most int64 = -1
	for name, u := range c.uses {
		if u.n > most || u.n == most && name < best {
			best, most = name, u.n
		}
	}
	return best
}

func (o *Observer) row(id group, members []*client) Row {
	slices.SortFunc(members, func(a, b *client) int { return cmp.Compare(a.addr, b.addr) })
	var lead *client // a silent one only where there is no other
	for _, c := range members {
		if lead == nil || c.leading() == id.vote && (lead.leading() != id.vote || c.tries > lead.tries) {
			lead = c
		}
	}
	v, peer := id.vote, o.names[lead.addr]
	row := Row{
		Addr: id.name, Host: hostOf(lead.addr), Name: peer.Name, User: peer.User, Lib: peer.Lib, Connections: len(members),
		Kind: v.kind, Dialect: v.dialect, Keys: []string{}, Sent: map[string]int64{},
	}
	if row.Kind == "" {
		row.Kind = Unknown
	}
	families := map[string]int64{}
	var poll, pause samples
	var best *client
	for _, c := range members {
		row.Tries += c.tries
		row.Acquired += c.acquired
		row.Released += c.released
		for word, n := range c.sent {
			row.Sent[word] += n
		}
		row.Pauses += c.pause.n
		row.PauseMaxMS = max(row.PauseMaxMS, ms(c.pause.most))
		pause.kept = append(pause.kept, c.pause.kept...)
		for f, u := range c.uses {
			families[f] += u.n
			row.Hold.kept = append(row.Hold.kept, u.hold.kept...)
			row.Wait.kept = append(row.Wait.kept, u.wait.kept...)
		}
		poll.kept = append(poll.kept, c.poll.kept...)
		if off, ok := o.clocks.off[c]; ok && (best == nil || off < o.clocks.off[best]) {
			best = c
		}
	}
	row.percentiles()
	row.PauseP50MS = ms(pause.at(0.5))
	if len(poll.kept) > 0 {
		// A sleep is often longer than asked for, never shorter; only a first command that was held up on its
		// way makes an interval look shorter. So it is the low end, but not the lowest.
		row.PollMS, row.PollSamples = ref(math.Round(ms(poll.at(0.3)))), len(poll.kept)
	}
	row.Keys = byCount(families)
	if len(row.Keys) > 0 {
		if lease, ok := o.clocks.lease[row.Keys[0]]; ok && row.Kind == Legacy {
			row.LeaseMS, row.LeaseFrom = ref(ms(lease)), o.clocks.source[row.Keys[0]]
		}
	}
	if row.LeaseMS == nil && lead.ttl > 0 && v.dialect != setnxUUID {
		row.LeaseMS, row.LeaseFrom = ref(ms(lead.ttl)), "ttl"
	}
	if best != nil && (row.Kind == Legacy || row.Kind == Modern) { // a token may be a time
		row.SkewMS, row.SkewErrorMS = ref(round1(ms(o.clocks.offset[best]))), ref(round1(ms(o.clocks.off[best])))
		for p, s := range o.sums {
			if p.client == best {
				row.Samples += s.n
			}
		}
		// One host is expected to have one clock; connections that disagree widen the bar.
		for _, c := range members {
			if off, ok := o.clocks.offset[c]; ok {
				*row.SkewErrorMS = max(*row.SkewErrorMS, round1(ms((off-o.clocks.offset[best]).Abs()-o.clocks.off[c])))
			}
		}
	}
	return row
}

func (r *Row) percentiles() {
	r.HoldP50MS, r.HoldP95MS = ms(r.Hold.at(0.5)), ms(r.Hold.at(0.95))
	r.WaitP50MS, r.WaitP95MS = ms(r.Wait.at(0.5)), ms(r.Wait.at(0.95))
}

func (o *Observer) overlapRow(v Overlap) OverlapRow {
	side := func(c *client, at protocol.Instant) Holder {
		lead := c.leading()
		return Holder{*o.who(c), lead.kind, lead.dialect, at.Time()}
	}
	return OverlapRow{
		Key: v.Key, DB: v.DB, First: side(v.First, v.FirstAt), Second: side(v.Second, v.SecondAt),
		From: v.From.Time(), To: v.To.Time(), MS: round1(ms(v.To.Sub(v.From))), Cause: o.cause(v),
	}
}

// cause names why two held at once; a lease tells a takeover that came early from an overrun.
func (o *Observer) cause(v Overlap) string {
	if v.Cause != "takeover" {
		return v.Cause
	}
	if lease, ok := o.lease(familyOf(v.Key)); ok && v.SecondAt < v.FirstAt.Add(lease-50*time.Millisecond) {
		return "early-takeover"
	}
	return "overrun"
}

// ghosts are legacy values whose expiry passed longer ago than a whole lease, by the server's clock.
func (o *Observer) ghosts() []GhostRow {
	rows := []GhostRow{}
	for id, e := range o.Keys.m {
		if e.kind != text || e.expires != 0 || len(rows) >= o.opts.MaxEvents || o.locks[id] == nil && o.opts.Match == nil || o.opts.Match != nil && !o.opts.Match(id.name) {
			continue
		}
		s := shapeOf(e.value, o.last)
		if s.kind != Legacy || s.forever || accompanies(id.name) {
			continue
		}
		grace := 5 * time.Second
		if lease, ok := o.clocks.lease[familyOf(id.name)]; ok {
			grace = max(lease, grace)
		}
		expires := s.expires
		if lk := o.locks[id]; lk != nil && lk.holder != nil {
			expires -= protocol.Instant(o.clocks.offset[lk.holder.c]) // what its writer meant, on the server's clock
		}
		if o.last.Sub(expires) > grace {
			rows = append(rows, GhostRow{Key: id.name, DB: id.db, ExpiredAt: expires.Time()})
		}
	}
	slices.SortFunc(rows, func(a, b GhostRow) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

const maxKeysShown = 8

func byCount(m map[string]int64) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	return keys[:min(len(keys), maxKeysShown)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func ref(f float64) *float64     { return &f }
func round1(f float64) float64   { return math.Round(f*10)/10 + 0 } // + 0 makes -0 of small offsets 0

// SentText says which commands a client took locks with, and how often: "SETNX 12, GETSET 1".
func (r *Row) SentText() string {
	var parts []string
	for _, word := range byCount(r.Sent) {
		parts = append(parts, fmt.Sprintf("%s %d", word, r.Sent[word]))
	}
	return strings.Join(parts, ", ")
}

// Kind is what the acting client looks like.
func (e Event) kind() string {
	if e.By == nil {
		return Unknown
	}
	if k := e.By.leading().kind; k != "" {
		return k
	}
	return Unknown
}
