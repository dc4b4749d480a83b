package observe

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// event is something that happened.
type event struct {
	At     protocol.Instant
	Hazard string // its name
	Key    traffic.Key
	By     *client
	Victim *client
	Note   string
}

// overlap is two holds of a key at once, from when the second began.
type overlap struct {
	lk            *lock
	first, second *hold
	to            protocol.Instant
	cause         string
}

// Who names a client in a report.
type Who struct {
	Addr string `json:"addr"`
	Name string `json:"name,omitempty"`
}

// EventRow is an event in JSON.
type EventRow struct {
	At     time.Time `json:"at"`
	Hazard string    `json:"hazard"`
	Key    string    `json:"key"`
	DB     int       `json:"db"`
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
	Addr        string `json:"addr"`
	Server      string `json:"server,omitempty"` // that a connection leads to, where there are several
	Host        string `json:"host"`
	Name        string `json:"name"`
	User        string `json:"user,omitempty"`
	Lib         string `json:"lib,omitempty"`
	Connections int    `json:"connections"`
	Kind        string `json:"kind"`
	Dialect     string `json:"dialect"`
	// DialectOr is what it may speak as well, and DialectDoubt why; empty where there is no doubt.
	DialectOr    string `json:"dialect_or,omitempty"`
	DialectDoubt string `json:"dialect_doubt,omitempty"`
	Sidecar      string `json:"sidecar,omitempty"` // the name of the one that it is behind
	profile.Lease
	PollMS      float64  `json:"poll_ms,omitempty"`
	SkewMS      *float64 `json:"skew_ms"`
	SkewErrorMS *float64 `json:"skew_error_ms"`
	Tries       int64    `json:"tries"`
	Acquired    int64    `json:"acquired"`
	Released    int64    `json:"released"`
	HoldP50MS   float64  `json:"hold_p50_ms"`
	WaitP50MS   float64  `json:"wait_p50_ms"`
	Keys        []string `json:"keys"`
	Databases   []int    `json:"databases"` // that these keys are in
	// Sent counts the commands with which it tried to take locks: SETNX, GETSET, SET NX, SET GET, SET, SETEX.
	Sent map[string]int64 `json:"sent"`
	// The longest time from its GET of an expired value to the GETSET, or SET, with which it takes the lock over, by the server's clock.
	PauseMaxMS float64 `json:"takeover_pause_max_ms"`
	Pauses     int64   `json:"takeover_pauses"`
}

// Report is what was seen.
type Report struct {
	Started       time.Time `json:"started"` // server's clock
	WindowSeconds float64   `json:"window_seconds"`
	Counts
	Complete     bool             `json:"keys_complete"` // the state of every key was known
	Refused      []string         `json:"refused"`       // reads of keys that the server refused: the command, and its words
	Clients      []Row            `json:"clients"`
	Acquired     map[string]int64 `json:"-"` // by what the kind of the client seemed to be by then
	Hazards      map[string]int64 `json:"hazards"`
	Overlaps     []OverlapRow     `json:"overlaps"`
	OverlapCount int64            `json:"overlap_count"`
	Events       []EventRow       `json:"events"` // hazards, the last of them
}

// Counts are how many commands of each kind were seen.
type Counts struct {
	Commands     int64 `json:"commands"`
	LockCommands int64 `json:"lock_commands"`
	Garbled      int64 `json:"unreadable_lines"`
	Crowded      int64 `json:"left_out"` // commands of clients beyond the most that are remembered
}

func (c *Counts) add(o Counts) {
	c.Commands += o.Commands
	c.LockCommands += o.LockCommands
	c.Garbled += o.Garbled
	c.Crowded += o.Crowded
}

func (o *Observer) hazard(e event) {
	o.hazards[e.Hazard]++
	e.Key.Name = strings.Clone(e.Key.Name)
	o.events = newest(append(o.events, e))
}

// newest bounds a list of what has happened: when it is full, the older half goes.
func newest[T any](all []T) []T {
	if len(all) < 2*maxEvents {
		return all
	}
	return all[:copy(all, all[maxEvents:])]
}

// row is how an event is shown.
func (e event) row() EventRow {
	return EventRow{At: e.At.Time(), Hazard: e.Hazard, Key: e.Key.Name, DB: e.Key.DB, By: e.By.who(), Victim: e.Victim.who(), Note: e.Note}
}

func (c *client) who() *Who {
	if c == nil {
		return nil
	}
	return &Who{Addr: c.addr, Name: c.o.names[c.addr].Name}
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
func (o *Observer) Report() Report { return observers{o}.report(nil) }

func byKind(a, b clientRow) int {
	order := []string{Legacy, Member, Bridge, Sidecar, Modern, Redisson, Unknown}
	return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), cmp.Compare(b.Acquired, a.Acquired), cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Dialect, b.Dialect))
}

// leading returns what a client is.
func (c *client) leading() vote {
	v := c.looksLike()
	if c.member && v.kind == Legacy {
		v.kind = Member
	}
	return v
}

// looksLike is what a client looks like by the values that it writes. Most of its commands say it, where nothing that it did says better;
// known kinds win over unknown ones.
func (c *client) looksLike() vote {
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
	case best.dialect == protocol.RedisPyFloat.Name && c.textTwice == 0 && c.deletesFloatsBlindly():
		// redis-objects writes what redis-py writes, a second later; it deletes without a look.
		best.dialect = protocol.RedisObjects.Name
	}
	return best
}

// other names what a client may be as well, and why, where one trait alone has decided or two contradict each other; empty where
// there is no doubt.
func (c *client) other() (dialect, why string) {
	v := c.leading()
	switch {
	case v.kind == Member: // its namespace's record names the dialect
	case v.dialect == protocol.RedisObjects.Name && c.textAnew == 0 && !c.ttlTells():
		return protocol.RedisPyFloat.Name, "it deletes without a look, and nothing else tells them apart; a copy of redis-py may do that too"
	case v.dialect == protocol.RedisPyFloat.Name && c.deletesFloatsBlindly():
		return protocol.RedisObjects.Name, "it sends one text twice as redis-py does, and deletes without a look as redis-objects does"
	case v.dialect == protocol.RedisPyFloat.Name && c.textTwice == 0 && c.getRelease == 0 && c.o.family(c.family()).looked == 0: // one that has released nothing does as the others
		return protocol.RedisObjects.Name, "no release of it was seen, and no takeover"
	case v.dialect == blindSet && c.blindSets == 0:
		return protocol.RedisDoc.Name, "its keys have the names of such locks, and an EXPIRE follows; it was not seen to overwrite anybody"
	case v.kind == Legacy && v.dialect == protocol.UnixNano.Name && c.sent["SETNX"] == 0 && c.sent["GETSET"] == 0 && c.readAfter == 0:
		return setNXPX, "it takes with a TTL what reads as a time, and was not seen to read one"
	}
	return "", ""
}

// ttlTells that the TTL which follows SETNX is what its value says, less the second that redis-objects adds.
func (c *client) ttlTells() bool {
	u := c.uses[c.family()]
	return u != nil && u.lease.from == "ttl"
}

// expires tells that an EXPIRE follows its SETNX. One that has won nothing does as those do that have.
func (c *client) expires() bool {
	wins, expired := c.wins, c.expired
	if wins == 0 {
		f := c.o.family(c.family())
		wins, expired = f.wins, f.expired
	}
	return expired > 0 && (wins-expired <= 1 || expired*10 >= wins*9)
}

// deletesFloatsBlindly: one that has released nothing does as the others of its family do.
func (c *client) deletesFloatsBlindly() bool {
	if c.blindDelete > 0 || c.getRelease > 0 {
		return c.getRelease == 0
	}
	f := c.o.family(c.family())
	return f.blind > 0 && f.looked == 0
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

func (o *Observer) overlapRow(v overlap) OverlapRow {
	side := func(h *hold) Holder {
		lead := h.c.leading()
		return Holder{*h.c.who(), lead.kind, lead.dialect, h.began.Time()}
	}
	from := v.second.began
	return OverlapRow{
		Key: v.lk.id.Name, DB: v.lk.id.DB, First: side(v.first), Second: side(v.second),
		From: from.Time(), To: v.to.Time(), MS: round1(ms(v.to.Sub(from))), Cause: o.cause(v),
	}
}

// cause names why two held at once; a lease tells a takeover that came early from an overrun.
func (o *Observer) cause(v overlap) string {
	if v.cause != "takeover" {
		return v.cause
	}
	if lease, ok := o.leaseOf(v.first, v.lk); ok && v.second.began < v.first.began.Add(lease-50*time.Millisecond) {
		return "early-takeover"
	}
	return "overrun"
}

const maxKeysShown = 8

func byCount(m map[string]int64) []string {
	names := slices.AppendSeq([]string{}, maps.Keys(m))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	return names
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func ref(f float64) *float64     { return &f }
func round1(f float64) float64   { return math.Round(f*10)/10 + 0 } // + 0 makes -0 of small offsets 0

// HazardText says which hazards happened, and how often: "stale-delete 12, clobber 1".
func (r *Report) HazardText() string {
	var parts []string
	for _, name := range byCount(r.Hazards) {
		parts = append(parts, fmt.Sprintf("%s %d", name, r.Hazards[name]))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}
