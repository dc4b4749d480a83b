package verify

import (
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	stream "github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// traffic reads MONITOR lines of one server: it counts the commands that can take a lock, and tells which of
// them a legacy client sent. It depends on the lines alone, and is not safe for concurrent use.
type traffic struct {
	matches func(key string) bool
	saw     func(sighting) // is told of each command of a legacy client
	prefix  string         // of this run's marks; other runs may look at the same server

	counts   counts
	caller   string // the client whose script runs, if lines of "lua" follow
	ours     bool   // the script is one of the bridge or of modern clients
	line     stream.Command
	garbled  int64
	mark     string // of the look that the last ECHO belongs to, and its client
	markAddr string
}

// counts is what was seen of each command of Taking.
type counts struct {
	lines   [taking]int64
	unclear [taking]int64 // whose key or form could not be read
}

// sighting is one command of a legacy client.
type sighting struct {
	addr, key, dialect string
	form               string // how it took or wrote the lock
}

// markPrefix begins the text that the ECHO of each look sends, to find the look's place in the stream.
const markPrefix = "lockmigrate-verify-"

// take reads a line. Cut says that only the line's beginning is there. It returns the mark of a look when the
// line is the INFO of that look: what was counted before it is what the INFO told.
func (t *traffic) take(text string, cut bool) (mark string) {
	name := commandIn(text)
	at := indexOf(name)
	if at < 0 && name != "echo" && name != "info" && !runsScript[name] {
		return ""
	}
	if t.line.ParseCut(text, cut) != nil {
		t.garbled++
		return ""
	}
	l := &t.line
	switch {
	case name == "echo":
		if len(l.Words) == 2 && strings.HasPrefix(l.Words[1], t.prefix) {
			t.mark, t.markAddr = strings.Clone(l.Words[1]), strings.Clone(l.Addr)
		}
		return ""
	case name == "info":
		if l.Addr == t.markAddr {
			mark, t.mark, t.markAddr = t.mark, "", ""
		}
		return mark
	case runsScript[name]:
		t.caller, t.ours = strings.Clone(l.Addr), len(l.Words) > 1 && harmless(l.Words[1])
		return ""
	}
	if at >= 0 {
		t.counts.lines[at]++
	}
	t.judge(name, at, cut)
	return ""
}

var runsScript = map[string]bool{"eval": true, "evalsha": true, "eval_ro": true, "evalsha_ro": true, "fcall": true, "fcall_ro": true}

// commandIn returns the command of a line, in lower case, without reading the rest.
func commandIn(text string) string {
	_, rest, found := strings.Cut(text, `] "`)
	if !found {
		return ""
	}
	name, _, _ := strings.Cut(rest[:min(len(rest), 20)], `"`)
	return strings.ToLower(name)
}

// judge tells what a command did to lock keys.
func (t *traffic) judge(name string, at int, cut bool) {
	w := t.line.Words
	unclear := func() {
		if at >= 0 {
			t.counts.unclear[at]++
		}
	}
	if len(w) < 3 { // a command without its arguments is refused, and not counted; this one was cut
		unclear()
		return
	}
	// What may have been left out: the end of a long line, and words beyond those that are kept.
	partly := cut || len(w) >= stream.MaxWords
	switch name {
	case "setnx", "getset":
		if t.matches(w[1]) {
			t.sees(w[1], w[2], strings.ToUpper(name))
		}
	case "renamenx":
		if t.matches(w[2]) {
			t.sees(w[2], "", "RENAMENX")
		}
	case "msetnx", "mset":
		for i := 1; i+1 < len(w); i += 2 {
			if !t.matches(w[i]) {
				continue
			}
			if _, expiry := t.expiry(w[i], w[i+1]); name == "msetnx" || expiry {
				t.sees(w[i], w[i+1], strings.ToUpper(name))
			}
		}
		if partly {
			unclear()
		}
	case "setex", "psetex":
		switch {
		case !t.matches(w[1]):
		case partly || len(w) < 4:
			unclear()
		default:
			t.writes(w[1], w[3], strings.ToUpper(name))
		}
	case "set":
		switch {
		case !t.matches(w[1]):
		case partly:
			unclear()
		default:
			t.set(w[1], w[2])
		}
	}
}

// set tells the forms of SET. NX without a TTL, and GET, are the old scheme's SETNX and GETSET in other words.
// NX with a TTL is how token locks are taken.
func (t *traffic) set(key, value string) {
	switch o := t.line.SetOptions(); {
	case o.Get:
		t.sees(key, value, "SET GET")
	case o.NX && !o.Timed && t.line.InScript() && t.ours:
		// A script of ours that hands a lock over asks whether it may: the key exists, so this sets nothing.
	case o.NX && !o.Timed:
		t.sees(key, value, "SET NX without TTL")
	case o.NX:
		t.writes(key, value, "SET NX of an expiry")
	default:
		t.writes(key, value, "SET of an expiry")
	}
}

// writes notes a value on a lock key, if it is an expiry. The scripts of the bridge and of modern clients write
// times on keys of their own beside a lock.
func (t *traffic) writes(key, value, form string) {
	if t.line.InScript() && t.ours {
		return
	}
	if _, expiry := t.expiry(key, value); expiry {
		t.sees(key, value, form)
	}
}

func (t *traffic) sees(key, value, form string) {
	addr := t.line.Addr
	if t.line.InScript() {
		addr, form = t.caller, form+" in a script"
	}
	dialect, _ := t.expiry(key, value)
	t.saw(sighting{addr: strings.Clone(addr), key: strings.Clone(key), dialect: dialect, form: form})
}

// expiry tells whether a value is an expiry, and in which dialect.
func (t *traffic) expiry(key, value string) (dialect string, ok bool) {
	return expiryOf(key, value, t.line.At)
}

func expiryOf(key, value string, now protocol.Instant) (dialect string, ok bool) {
	if len(value) >= census.Peek {
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

// harmless tells a server script of the bridge, of modern clients or of a sidecar, by its text, digest or name. At stage legacy a
// sidecar locks the old way, by a script of its own.
func harmless(text string) bool {
	name := scripts.NameOf(text)
	return strings.HasPrefix(name, "bridge_") || strings.HasPrefix(name, "modern_") ||
		strings.HasPrefix(name, "sidecar_") && name != scripts.SidecarOld.Name
}
