package verify

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// reader reads MONITOR lines of one server: it counts the commands that write, and judges each that touched a lock key by what is
// allowed there. What nothing explains it tells, by who did it. It depends on the lines alone, and is not safe for concurrent use.
type reader struct {
	table   traffic.Table
	matches func(key string) bool
	ignores func(db int) bool // a database that was said to be of no concern
	anybody bool              // what touched a lock key is told, whatever it was
	prefix  string            // of this run's marks; other runs may look at the same server

	counts   counts
	touches  map[place]*deeds // what is to be told: since it was taken, and since the last mark with anybody
	scripts  traffic.Scripts
	compares []string // lock keys that the last script has read by GET
	line     traffic.Command
	garbled  int64
	mark     string // of the look that the last ECHO belongs to, and its client
	markAddr string
}

// counts is what was seen of each command, by its name in INFO.
type counts map[string]count

type count struct {
	lines   int64
	unclear int64 // whose key or form could not be read
}

func (c count) less(o count) count { return count{c.lines - o.lines, c.unclear - o.unclear} }

// markPrefix begins the text that the ECHO of each look sends, to find the look's place in the stream.
const markPrefix = "lockmigrate-verify-"

// take reads a line. Cut says that only the line's beginning is there. It returns the mark of a look when the
// line is the INFO of that look: what was counted before it is what the INFO told.
func (r *reader) take(text string, cut bool) (mark string) {
	name, lua := commandIn(text)
	runs := traffic.RunsScript(name)
	if !(lua && name == "GET") && name != "ECHO" && name != "INFO" && !runs && !r.table.MayWrite(name) {
		return ""
	}
	c := &r.line
	if c.ParseCut(text, cut) != nil {
		r.garbled++
		return ""
	}
	r.scripts.Attribute(c)
	w := c.Words
	switch {
	case name == "ECHO":
		if len(w) == 2 && strings.HasPrefix(w[1], r.prefix) {
			r.mark, r.markAddr = strings.Clone(w[1]), strings.Clone(c.Addr)
		}
	case name == "INFO":
		if c.Addr == r.markAddr {
			mark, r.mark, r.markAddr = r.mark, "", ""
		}
	case runs:
		r.compares = r.compares[:0]
	case name == "GET":
		if len(w) > 1 && r.matches(w[1]) {
			r.compares = append(r.compares, strings.Clone(w[1]))
		}
	default:
		r.count(c)
	}
	return mark
}

// commandIn returns the command of a line, in capitals, without reading the rest, and whether a script sent it.
func commandIn(text string) (name string, lua bool) {
	before, rest, found := strings.Cut(text, `] "`)
	if !found {
		return "", false
	}
	name, _, _ = strings.Cut(rest[:min(len(rest), 40)], `"`)
	return strings.ToUpper(name), strings.HasSuffix(before, " lua")
}

// count counts a command that writes, or that the server did not tell of.
func (r *reader) count(c *traffic.Command) {
	if !r.table.Writes(c) {
		return
	}
	name := r.table.Name(c)
	unclear := name == ""
	if unclear {
		name = strings.ToLower(c.Words[0])
	} else {
		unclear = r.judge(c, name)
	}
	n := r.counts[name]
	n.lines++
	if unclear {
		n.unclear++
	}
	r.counts[name] = n
}

// across are writes that act on another database than the one that they are sent in.
var across = []string{"move", "copy", "swapdb", "flushall"}

// judge tells what a command did to lock keys; with anybody, of the first of them, whatever it was. It is unclear where its keys or its form could
// not be read.
func (r *reader) judge(c *traffic.Command, name string) (unclear bool) {
	if r.ignores != nil && r.ignores(c.DB) && !slices.Contains(across, name) {
		return false
	}
	if r.table.Everywhere(c) {
		r.sees("every key", strings.ToUpper(name), false)
		return false
	}
	keys, all := r.table.Touched(c)
	unclear = !all
	for _, key := range keys {
		if !r.matches(key) {
			continue
		}
		form, legacy, explained := r.form(name, key)
		if r.anybody {
			r.sees(key, form, legacy)
			break
		}
		unclear = unclear || c.Cut && !legacy
		if !explained {
			r.sees(key, form, legacy)
		}
	}
	return unclear
}

// form tells how a command acts on a lock key, whether only the old scheme does so, and whether it is allowed:
//
//   - whatever a script of this project does, of this build or an earlier one
//   - SET with NX and a TTL, of a value that is no expiry: how token locks are taken
//   - DELIFEQ and DELEX IFEQ, and DEL and a new TTL in a script that has read the key: a release or renewal that compares
func (r *reader) form(name, key string) (form string, legacy, explained bool) {
	w := r.line.Words
	form = strings.ToUpper(name)
	inScript := r.line.InScript()
	ours := inScript && r.line.Script != nil && allowed(cmp.Or(r.line.Script.Name, r.line.Script.Earlier))
	compared := inScript && slices.Contains(r.compares, key)
	_, expiry := expiryOf(key, valueOn(w, key), r.line.At)
	switch name {
	case "setnx", "getset", "msetnx", "renamenx":
		legacy = name != "renamenx" || len(w) > 2 && w[2] == key
	case "set":
		o := r.line.SetOptions()
		switch {
		case o.Get:
			form, legacy = "SET GET", true
		case o.NX && !o.Timed:
			form, legacy = "SET NX without TTL", true
		case expiry && o.NX:
			form, legacy = "SET NX of an expiry", true
		case expiry:
			form, legacy = "SET of an expiry", true
		default:
			explained = o.NX && !o.XX && len(w) == 6
		}
	case "setex", "psetex", "mset":
		if legacy = expiry; legacy && name != "mset" {
			form += " of an expiry"
		}
	case "del", "unlink", "expire", "pexpire", "expireat", "pexpireat":
		explained = compared
	case "zrem": // a waiter of ours that leaves the queue beside a lock
		owner, _, beside := protocol.Owner([]byte(key))
		explained = beside && protocol.QueueKey(owner) == key
	case "delifeq":
		explained = true
	case "delex":
		explained = len(w) == 4 && strings.EqualFold(w[2], "IFEQ")
	}
	if inScript {
		return form + " in a script", legacy && !ours, explained || ours
	}
	return form, legacy, explained
}

// valueOn is what a command writes on a key, as far as that can be an expiry.
func valueOn(w []string, key string) string {
	at := map[string]int{"SET": 2, "SETNX": 2, "GETSET": 2, "SETEX": 3, "PSETEX": 3}[w[0]]
	if w[0] == "MSET" || w[0] == "MSETNX" {
		for at = 2; at < len(w) && w[at-1] != key; at += 2 {
		}
	}
	if at == 0 || at >= len(w) {
		return ""
	}
	return w[at]
}

// sees notes what a client did to a lock key. The line's memory is used again.
func (r *reader) sees(key, form string, legacy bool) {
	at := place{cmp.Or(r.line.Client(), "a script"), r.line.DB}
	did := r.touches[at]
	if did == nil {
		if r.touches == nil {
			r.touches = map[place]*deeds{}
		}
		did, at.addr = &deeds{}, strings.Clone(at.addr)
		r.touches[at] = did
	}
	did.legacy = did.legacy || legacy
	if dialect, _ := expiryOf(key, valueOn(r.line.Words, key), r.line.At); dialect != "" {
		did.dialect = dialect
	}
	did.note(form, 1, strings.Clone(key))
}

// expiryOf tells whether a value is an expiry, and in which dialect.
func expiryOf(key, value string, now protocol.Instant) (dialect string, ok bool) {
	if value == "" || len(value) >= census.Peek {
		return "", false
	}
	judge := census.Judge{Now: now, GhostAfter: time.Hour, Chosen: true}
	f := judge.Classify(&census.Look{Key: []byte(key), Type: "string", Value: []byte(value), TTL: census.NoTTL})
	if !f.Format.Legacy() {
		return "", false
	}
	return dialectOf(f), true
}

// dialectOf returns the likeliest dialect of an expiry, empty where it is one of those without a name.
func dialectOf(f census.Finding) string {
	if len(f.Dialects) == 0 {
		return ""
	}
	return f.Dialects[0]
}

// allowed tells a script of this project by its file. Those with which Go members and sidecars lock the old way at stage legacy are not
// allowed.
func allowed(script string) bool {
	return script != "" && script != scripts.CompareSet.Name && !strings.HasPrefix(script, "gated_")
}
