package traffic

import (
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// learn tells the copy of the keys what a reply says of the state before its command.
func (c *dialogues) learn(l *Command, v respValue) {
	key := l.Words[1]
	there := func(yes bool) { c.learnThere(l, key, yes) }
	value := func() { c.learnValue(l, key, v) }
	n, number := v.integer()
	switch l.Words[0] {
	case "GET", "GETSET", "GETDEL", "GETEX":
		value()
	case "SETNX":
		if number {
			there(n == 0)
		}
	case "SET":
		switch o := l.SetOptions(); {
		case o.Get:
			value()
		case o.NX:
			there(v.null)
		case o.XX:
			there(!v.null)
		}
	case "DEL", "UNLINK":
		if number && len(l.Words) == 2 {
			there(n == 1)
		}
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT":
		if number && len(l.Words) == 3 {
			there(n == 1)
		}
	}
}

// script takes in what a script did, as far as its reply tells: those of this project take a key, or give it back. What
// another one did to its keys is not known.
func (c *dialogues) script(l *Command, v respValue) {
	call := l.Script
	if call.Name == "" || call.keys == 0 {
		for _, name := range call.Keys() {
			c.keys.forget(Key{l.DB, name})
		}
		return
	}
	s := scripts.Of(call.Words[1])
	named := s.Read(call.Args())
	key, value := call.Keys()[0], named["value"]+named["token"]
	code, _ := v.integer()
	if len(v.elems) > 0 {
		code, _ = v.elems[0].integer()
	}
	as := func(words ...string) {
		c.tell(&Command{At: l.At, DB: l.DB, Addr: "lua", Words: words, Script: call})
	}
	sets := func(value string) { as("SET", key, value, "PX", named["ttl"]) }
	takes := func(value string) {
		c.keys.LearnAbsent(l.DB, key)
		sets(value)
	}
	stands := func() { // the fourth element is what stands on the key
		if len(v.elems) > 3 && v.elems[3].kind == '$' {
			c.keys.Learn(l.DB, key, v.elems[3].text)
		}
	}
	switch s {
	case scripts.BridgeAcquire, scripts.ModernTake, scripts.ModernQueue:
		if code >= 1 {
			takes(value)
		}
	case scripts.BridgeSettle:
		if code > 1 {
			sets(value)
		} else if code < 0 {
			stands()
		}
	case scripts.BridgeRelease, scripts.ModernRelease, scripts.CompareDel:
		if code >= 1 {
			c.keys.Learn(l.DB, key, value)
			as("DEL", key)
		} else if code < 0 {
			stands()
		}
	case scripts.GatedWrite: // the command itself
		switch named["command"] {
		case "SETNX":
			c.learnThere(l, key, code == 0)
			as("SETNX", key, value)
		case "GETSET":
			c.learnValue(l, key, v)
			as("GETSET", key, value)
		default:
			as("SET", key, value)
		}
	case scripts.CompareSet, scripts.GatedCompareSet:
		if code == 1 {
			c.keys.Learn(l.DB, key, named["old"])
			as("SET", key, value)
		}
	case scripts.RedissonTake:
		if v.null {
			if c.keys.look(Key{l.DB, key}, l.At).kind != hash {
				c.keys.LearnAbsent(l.DB, key)
			}
			as("HINCRBY", key, named["holder"], "1")
		}
	case scripts.RedissonRelease, scripts.SidecarDel:
		if code == 1 {
			c.learnThere(l, key, true)
			as("DEL", key)
		}
	case scripts.SidecarTake:
		if shape := named["shape"]; shape == "nx" && code == 1 || shape == "set" && !v.null || (shape == "getset" || shape == "lose") && v.null {
			takes(named["value"])
		}
	}
}

// learnThere tells the copy that a key exists, or does not.
func (c *dialogues) learnThere(l *Command, key string, yes bool) {
	_, _, text := c.keys.Value(l.DB, key, l.At)
	switch {
	case !yes:
		c.keys.LearnAbsent(l.DB, key)
	case !text:
		c.keys.LearnThere(l.DB, key)
	}
}

// learnValue tells the copy what a reply shows of a key.
func (c *dialogues) learnValue(l *Command, key string, v respValue) {
	old, _, text := c.keys.Value(l.DB, key, l.At)
	switch {
	case v.null:
		c.keys.LearnAbsent(l.DB, key)
	case v.kind != '$':
	case !text || old != v.text:
		c.keys.LearnAbsent(l.DB, key) // a TTL of the value before is not this one's
		c.keys.Learn(l.DB, key, v.text)
	}
}
