package traffic

import (
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// learn tells the copy of the keys what a reply says of the state before its command.
func (c *dialogues) learn(l *Command, v respValue) {
	id := Key{l.DB, l.Words[1]}
	n, number := v.integer()
	switch l.Words[0] {
	case "GET", "GETSET", "GETDEL", "GETEX":
		c.learnValue(l, id, v)
	case "SETNX":
		if number {
			c.learnThere(l, id, n == 0)
		}
	case "SET":
		switch o := l.SetOptions(); {
		case o.Get:
			c.learnValue(l, id, v)
		case o.NX:
			c.learnThere(l, id, v.null)
		case o.XX:
			c.learnThere(l, id, !v.null)
		}
	case "DEL", "UNLINK":
		if number && len(l.Words) == 2 {
			c.learnThere(l, id, n == 1)
		}
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT":
		if number && len(l.Words) == 3 {
			c.learnThere(l, id, n == 1)
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
	id := Key{l.DB, key}
	code, _ := v.integer()
	if len(v.elems) > 0 {
		code, _ = v.elems[0].integer()
	}
	as := func(words ...string) {
		c.tell(&Command{At: l.At, DB: l.DB, Addr: "lua", Words: words, Script: call})
	}
	sets := func(value string) { as("SET", key, value, "PX", named["ttl"]) }
	takes := func(value string) {
		c.keys.LearnAbsent(id)
		sets(value)
	}
	stands := func() { // the fourth element is what stands on the key
		if len(v.elems) > 3 && v.elems[3].kind == '$' {
			c.keys.Learn(id, v.elems[3].text)
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
			c.keys.Learn(id, value)
			as("DEL", key)
		} else if code < 0 {
			stands()
		}
	case scripts.GatedWrite: // the command itself
		switch named["command"] {
		case "SETNX":
			c.learnThere(l, id, code == 0)
			as("SETNX", key, value)
		case "GETSET":
			c.learnValue(l, id, v)
			as("GETSET", key, value)
		default:
			as("SET", key, value)
		}
	case scripts.CompareSet, scripts.GatedCompareSet:
		if code == 1 {
			c.keys.Learn(id, named["old"])
			as("SET", key, value)
		}
	case scripts.RedissonTake:
		if v.null {
			if c.keys.look(id, l.At).kind != hash {
				c.keys.LearnAbsent(id)
			}
			as("HINCRBY", key, named["holder"], "1")
		}
	case scripts.RedissonRelease, scripts.SidecarDel:
		if code == 1 {
			c.learnThere(l, id, true)
			as("DEL", key)
		}
	case scripts.SidecarTake:
		if shape := named["shape"]; shape == "nx" && code == 1 || shape == "set" && !v.null || (shape == "getset" || shape == "lose") && v.null {
			takes(named["value"])
		}
	}
}

// learnThere tells the copy that a key exists, or does not.
func (c *dialogues) learnThere(l *Command, id Key, yes bool) {
	_, _, text := c.keys.Value(id, l.At)
	switch {
	case !yes:
		c.keys.LearnAbsent(id)
	case !text:
		c.keys.LearnThere(id)
	}
}

// learnValue tells the copy what a reply shows of a key.
func (c *dialogues) learnValue(l *Command, id Key, v respValue) {
	old, _, text := c.keys.Value(id, l.At)
	switch {
	case v.null:
		c.keys.LearnAbsent(id)
	case v.kind != '$':
	case !text || old != v.text:
		c.keys.LearnAbsent(id) // a TTL of the value before is not this one's
		c.keys.Learn(id, v.text)
	}
}
