package observe

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// Group says whose commands belong together.
type Group string

// The groupings.
const (
	ByAddr Group = "addr" // a connection
	ByHost Group = "host"
	ByName Group = "name" // CLIENT SETNAME; connections without one stay apart
)

// Options of an observation. The zero value is sensible.
type Options struct {
	Group Group
	Lease time.Duration // of every legacy client, where it is known; 0: found out
	Match func(key string) bool
	// Ignore are addresses of our own.
	Ignore func(addr string) bool
	// Wonder, if set, is told of a lock key whose state is not known, so that a live observer can ask.
	Wonder func(traffic.Key)
}

// What is remembered at most.
const maxKeys, maxClients, maxEvents = 200_000, 20_000, 500

// Observer makes a report of a stream of commands of one server. It is not safe for concurrent use.
type Observer struct {
	Keys *traffic.Keys

	opts    Options
	server  string // that is watched, empty for a file
	clients map[string]*client
	locks   map[traffic.Key]*lock
	solved  protocol.Instant // when the clocks were, last
	script  script
	tokens  map[string]asker // who asked with which token, for hand-overs
	names   map[string]Peer
	steps   map[string]step // by host
	pooled  map[string]bool // hosts with several connections: one takes over what another has read

	first, last protocol.Instant
	counts      Counts
	acquired    map[string]int64 // by kind of client
	hazards     map[string]int64
	events      []event
	overlaps    []overlap
	overlapN    int64
	deferred    []func() // judgements that wait for a lease
	families    map[string]*family
	uses        int   // of all clients
	unused      int64 // commands on families beyond the most that are remembered of a client, or of all
}

// family is what is known of one kind of keys beside its clients.
type family struct {
	wins, expired int64            // acquisitions by SETNX, and those of them that an EXPIRE followed
	ttl           bounds           // of those that EXPIRE gave to expiries; 0: none
	blind, looked int64            // releases of float expiries: by DEL at once, and after a GET
	beyond        int64            // tries on keys beyond maxKeys, and uses by connections beyond mostUsers
	lease         lease            // as it was solved last
	overlaps      map[string]int64 // by cause
}

func (o *Observer) family(name string) *family {
	f := o.families[name]
	if f == nil {
		f = &family{overlaps: map[string]int64{}}
		if len(o.families) < maxKeys {
			o.families[name] = f
		}
	}
	return f
}

// New returns an observer that has seen nothing.
func New(opts Options) *Observer {
	opts.Group = cmp.Or(opts.Group, ByAddr)
	return &Observer{
		Keys: traffic.NewKeys(maxKeys), opts: opts,
		clients: map[string]*client{}, locks: map[traffic.Key]*lock{},
		tokens: map[string]asker{}, names: map[string]Peer{}, acquired: map[string]int64{}, hazards: map[string]int64{},
		steps: map[string]step{}, families: map[string]*family{},
	}
}

// Name tells who is behind an address.
func (o *Observer) Name(addr string, p Peer) {
	if len(o.names) >= 4*maxClients { // connections that come and go: keep those that matter
		maps.DeleteFunc(o.names, func(a string, _ Peer) bool { return o.clients[a] == nil })
	}
	o.names[strings.Clone(addr)] = p
}

// Garbled counts a line that cannot be read.
func (o *Observer) Garbled() { o.counts.Garbled++ }

// Commands returns how many commands were taken in.
func (o *Observer) Commands() int64 { return o.counts.Commands }

// Take takes in the next command.
func (o *Observer) Take(l *traffic.Command) {
	o.first = cmp.Or(o.first, l.At)
	o.last = max(o.last, l.At)
	if !l.InScript() && o.opts.Ignore != nil && o.opts.Ignore(l.Addr) {
		return
	}
	o.counts.Commands++
	c := o.script.caller
	if !l.InScript() {
		c = o.client(l)
	} else if l.Script != o.script.call {
		c = nil
	}
	if c == nil { // a script that began before the stream, or too many clients
		o.Keys.Apply(l)
		return
	}
	c.before, c.last = c.last, l.At
	if l.Script != nil && !l.InScript() {
		o.begin(c, l)
	}
	switch l.Words[0] {
	case "CLIENT":
		if len(l.Words) == 3 && strings.EqualFold(l.Words[1], "SETNAME") {
			p := o.names[l.Addr]
			p.Name = strings.Clone(l.Words[2])
			o.Name(l.Addr, p)
		}
	case "WATCH":
		if len(l.Words) > 1 {
			c.watched = traffic.Key{DB: l.DB, Name: l.Words[1]}
		}
	case "EXEC", "UNWATCH", "DISCARD":
		c.watched = traffic.Key{}
	case "FLUSHALL":
		o.flushed(c, -1, l.At)
	case "FLUSHDB":
		o.flushed(c, l.DB, l.At)
	}
	for _, e := range o.Keys.Apply(l) {
		if o.unwanted(e.Key.Name) || e.Op == traffic.OpGet && o.locks[e.Key] == nil && !o.named(e.Key.Name) {
			continue
		}
		if e.Op == traffic.OpGet && !l.InScript() {
			c.attempt(e.Key).read = sighting{l.At, e.Old, e.OldKnown, e.There}
		}
		o.effect(c, l, e, o.takes(c, l, e))
	}
}

// unwanted tells a key that the operator did not ask for.
func (o *Observer) unwanted(key string) bool { return o.opts.Match != nil && !o.opts.Match(key) }

// named tells that the operator or the key's name says that it is a lock.
func (o *Observer) named(key string) bool {
	if o.opts.Match != nil {
		return o.opts.Match(key)
	}
	return census.LockName(key) || census.BlindSetName(key)
}

// takes tells whether a command with which the old scheme takes locks is on one: on keys that were asked for every value counts, on others those
// that a lock is known to write. It counts what the client sent so.
func (o *Observer) takes(c *client, l *traffic.Command, e traffic.Effect) (lock bool) {
	word := sentAs(l, e)
	if word == "" || accompanies(e.Key.Name) {
		return false
	}
	lock = o.named(e.Key.Name) || formOf(e.Value, l.At).kind != Unknown
	ours := l.InScript() && o.script.name != ""
	if lock && (!ours || word == "SETNX" || word == "GETSET") {
		c.sent[word]++
	}
	return lock
}

// sentAs names the command that tried to take a key; empty for all others.
func sentAs(l *traffic.Command, e traffic.Effect) string {
	if e.Op == traffic.OpGetSet && l.Words[0] != "GETSET" {
		return "SET GET"
	}
	return takes[e.Op]
}

var takes = map[traffic.Op]string{traffic.OpSetNX: "SETNX", traffic.OpTake: "SET NX", traffic.OpGetSet: "GETSET"}

// begin notes a script, which the lines of "lua" that follow belong to.
func (o *Observer) begin(c *client, l *traffic.Command) {
	o.script = script{call: l.Script, caller: c, name: l.Script.Name}
	c.member = c.member || strings.HasPrefix(o.script.name, "gated_")
	o.script.again = l.Words[0] == "EVAL" && len(l.Words) > 2 && len(c.digest) > 2 && slices.Equal(l.Words[2:], c.digest[2:])
	c.digest = nil
	if l.Words[0] == "EVALSHA" {
		c.digest = l.Script.Words
	}
	if len(l.Words) < 3 {
		return
	}
	switch o.script.name {
	case "":
		o.otherVersion(c, l)
	case scripts.SidecarTake.Name:
		o.behindSidecar(c, l)
	case scripts.ModernTake.Name, scripts.ModernQueue.Name, scripts.BridgeAcquire.Name:
		named := scripts.Of(l.Words[1]).Read(o.script.args())
		if token := named["token"] + named["value"]; token != "" {
			o.asksWith(token, asker{c: c, kind: kindOf(o.script.name)})
			o.asks(c, l)
		}
	}
	for _, name := range o.script.names() {
		if lk := o.locks[traffic.Key{DB: l.DB, Name: name}]; lk != nil {
			o.acts(lk, c, l.At)
		}
	}
}

// lock returns what is known of a lock's key, and begins to know it. It is nil, and counts a use of it, where too many are known.
func (o *Observer) lock(id traffic.Key) *lock {
	lk := o.locks[id]
	if lk == nil && len(o.locks) >= maxKeys {
		o.family(Family(id.Name)).beyond++
	} else if lk == nil {
		id.Name = strings.Clone(id.Name)
		lk = &lock{id: id, family: Family(id.Name)}
		o.locks[id] = lk
	}
	return lk
}

// lease returns what is known by now of a client's lease on a family of keys.
func (o *Observer) lease(c *client, family string) (l lease, known bool) {
	o.solve(false)
	if u := c.uses[family]; u == nil || u.lease.likely == 0 {
		o.solve(true)
	}
	l = c.lease(family)
	l.likely = cmp.Or(l.likely, o.opts.Lease)
	return l, l.likely > 0
}

// leaseOf returns the lease of one lock: its TTL, or of the old scheme what is known of its client's leases. Where these vary, its value says which.
func (o *Observer) leaseOf(h *hold, lk *lock) (time.Duration, bool) {
	if h.c.member || h.form.kind != Legacy || h.form.forever {
		return h.ttl, h.ttl > 0
	}
	l, known := o.lease(h.c, lk.family)
	if l.varies && h.form.timed() && h.ttl == 0 {
		return h.form.expires.Sub(h.at) - h.c.extra(h.form.of) - h.c.clock.offset, true
	}
	return l.likely, known
}
