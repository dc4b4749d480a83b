package traffic

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// Table is a server's own COMMAND: which commands it has, which of them write, and where their keys stand.
type Table map[string]syntax

// syntax is where the keys of one command stand.
type syntax struct {
	writes, movable   bool
	first, last, step int  // positions of the keys among the words; last counts from the end where it is negative
	container         bool // its second word is a command of its own
}

// ReadTable asks a server.
func ReadTable(ctx context.Context, conn redis.Conn) (Table, error) {
	reply, err := redis.Values(redis.DoContext(conn, ctx, "COMMAND"))
	if err != nil {
		return nil, err
	}
	t := Table{}
	for _, one := range reply {
		if err := t.take(one); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// take takes in a command: name, arity, flags, first key, last key, step; from Redis 7.0 on also ACL categories, tips, key specifications, and the
// commands that it contains.
func (t Table) take(reply any) error {
	fields, err := redis.Values(reply, nil)
	if err != nil || len(fields) < 6 {
		return fmt.Errorf("COMMAND has an entry that cannot be read: %v", reply)
	}
	name, err1 := redis.String(fields[0], nil)
	flags, err2 := redis.Strings(fields[2], nil)
	places, err3 := redis.Ints(fields[3:6], nil)
	if err1 != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("COMMAND has an entry that cannot be read: %v", reply)
	}
	s := syntax{writes: slices.Contains(flags, "write"), movable: slices.Contains(flags, "movablekeys"), first: places[0], last: places[1], step: max(places[2], 1)}
	if len(fields) > 9 {
		contained, _ := redis.Values(fields[9], nil)
		s.container = len(contained) > 0
		for _, one := range contained {
			if err := t.take(one); err != nil {
				return err
			}
		}
	}
	t[strings.ToUpper(name)] = s
	return nil
}

// Writers are the commands that can change a key, as INFO commandstats names them.
func (t Table) Writers() (names []string) {
	for name, s := range t {
		if s.writes && !s.container {
			names = append(names, strings.ToLower(name))
		}
	}
	slices.Sort(names)
	return names
}

// of returns the syntax of a command, and whether the server knows it. One that was renamed is not known.
func (t Table) of(c *Command) (s syntax, known bool) {
	if s, known = t[c.Words[0]]; s.container && len(c.Words) > 1 {
		s, known = t[c.Words[0]+"|"+strings.ToUpper(c.Words[1])]
	}
	return s, known
}

// Writes tells that a command can change a key. What the server does not know by that name can.
func (t Table) Writes(c *Command) bool {
	s, known := t.of(c)
	return s.writes || !known
}

// Touched are the keys that a command can have touched, in any position, and whether that is all of them. Where the keys of a command have no
// fixed place, or the command is not known, each word that may be a key is one. What a script does is not in the command that
// calls it; its keys are. The result is valid as long as the command's words.
func (t Table) Touched(c *Command) (keys []string, all bool) {
	s, known := t.of(c)
	switch {
	case c.Script != nil && !c.InScript():
		return c.Script.Keys(), !c.Cut
	case !known || s.movable:
		return c.Words[1:], !c.Cut
	case s.first == 0:
		return nil, true
	}
	last := s.last
	if last < 0 {
		last += len(c.Words)
	}
	for i := s.first; i <= last && i < len(c.Words); i += s.step {
		keys = append(keys, c.Words[i])
	}
	// Of a line that was cut the last word may be cut too. Keys of a fixed place are before it, as a rule.
	return keys, !c.Cut || s.last > 0 && s.last < len(c.Words)-1
}
