package observe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// script is the running or last script.
type script struct {
	call   *traffic.Script
	caller *client
	name   string // the file of ours, else empty
	again  bool   // the server did not know its digest, and its text is sent

	sidecar map[string]string // the words of sidecar_take.lua
}

func (s *script) names() []string { return s.call.Keys() }
func (s *script) args() []string  { return s.call.Args() }

// first tells that a key is the first one that the script was given: the lock itself.
func (s *script) first(key string) bool { return len(s.names()) > 0 && s.names()[0] == key }

// otherBridge stands for a bridge's script of another version.
const otherBridge = "bridge_other.lua"

// otherVersion knows a bridge's script of another version of this library by what it is given: the guard of its first key, and
// a bridge value. What it does then shows in its commands.
func (o *Observer) otherVersion(c *client, l *traffic.Command) {
	names := o.script.names()
	if len(names) < 2 || names[1] != protocol.GuardKey(names[0]) {
		return
	}
	for _, arg := range o.script.args() {
		if formOf(arg, l.At).kind != Bridge {
			continue
		}
		o.script.name = otherBridge
		if _, known := o.tokens[arg]; !known {
			o.asksWith(arg, asker{c: c, kind: Bridge})
		}
		return
	}
}

// asker is a client of ours that has asked for a lock, and what it is.
type asker struct {
	c     *client
	kind  string
	later bool // with the token on the key it does not hold the lock: it has to ask again
}

// behindSidecar is an attempt of a service behind a sidecar. What a release puts on the key for it is kept for its next attempt
// only. Shape wait is the sidecar itself, which asks for that.
func (o *Observer) behindSidecar(c *client, l *traffic.Command) {
	o.script.sidecar = scripts.SidecarTake.Read(o.script.args())
	c.sidecar = strings.Clone(o.script.sidecar["name"])
	o.asksWith(o.script.sidecar["value"], asker{c: c, kind: Bridge, later: true})
	if o.script.sidecar["shape"] != "wait" {
		o.asks(c, l)
	}
}

// kindOf tells what a client is that runs a script of ours.
func kindOf(script string) string {
	switch {
	case strings.HasPrefix(script, "bridge_"):
		return Bridge
	case strings.HasPrefix(script, "sidecar_"):
		return Sidecar
	}
	return Modern
}

// asksWith remembers who has asked for a lock with a token.
func (o *Observer) asksWith(token string, who asker) {
	if len(o.tokens) < maxKeys {
		o.tokens[strings.Clone(token)] = who
	}
}

// scriptSet is a SET by a script of ours.
func (o *Observer) scriptSet(c *client, lk *lock, l *traffic.Command, e traffic.Effect, s form) {
	h := lk.holder
	if h != nil && h.value == e.Value {
		h.at = l.At
		return
	}
	if owner := o.tokens[e.Value]; owner.later {
		switch asked := o.script.sidecar; {
		case asked != nil && asked["shape"] != "wait" && e.TTL > 0 && strconv.FormatInt(e.TTL.Milliseconds(), 10) == asked["ttl"]:
			o.use(c, lk.family).lives(c, e.TTL)
			o.acquire(c, lk, s, e.Value, l.At, "free")
		case asked == nil && h != nil:
			o.release(lk, h, c, l.At) // handed over: kept for an attempt that comes
		}
		return
	}
	switch name := o.script.name; {
	case name == "compare_set.lua" || name == "gated_compare_set.lua":
		if h != nil {
			h.at = l.At
			h.value, h.form = strings.Clone(e.Value), s
		}
	case name == "gated_write.lua":
		o.acquire(c, lk, s, e.Value, l.At, "takeover")
	case strings.HasPrefix(name, "bridge_"), strings.HasPrefix(name, "modern_"), name == "sidecar_del.lua", name == "sidecar_take.lua":
		owner, asked := o.tokens[e.Value]
		if !asked {
			owner = asker{c: c, kind: kindOf(name)}
		}
		owner.c.votes[vote{owner.kind, ours}]++
		for _, p := range lk.past {
			if owner.kind == Bridge && p.value == e.Value { // put back after a stale DEL or a clobber
				p.lost, p.at = "", l.At
				lk.past = slices.DeleteFunc(lk.past, func(x *hold) bool { return x == p })
				lk.holder = p
				return
			}
		}
		how, granted := "free", strings.HasSuffix(name, "_release.lua") || name == "sidecar_del.lua" || name == otherBridge && h != nil && slices.Contains(o.script.args(), h.value)
		switch {
		case granted:
			if h != nil {
				o.release(lk, h, c, l.At)
			}
			if !asked { // who has the lock now asked before the window
				return
			}
		case owner.kind == Bridge && owner.c == c && e.There:
			how = "takeover"
		}
		if owner.kind == Bridge && owner.c == c {
			o.use(c, lk.family).lives(c, e.TTL)
		}
		if !asked {
			o.tries(owner.c, lk)
		}
		o.acquire(owner.c, lk, s, e.Value, l.At, how)
	}
}
