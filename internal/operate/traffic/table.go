package traffic

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// Table is a server's own COMMAND: which commands it has, which of them write, and where their keys stand. An empty one knows nothing.
type Table map[string]syntax

// syntax is where the keys of one command stand.
type syntax struct {
	writes, movable   bool
	first, last, step int  // positions of the keys among the words; last counts from the end where it is negative
	container         bool // its second word is a command of its own
	arity             int  // how many words it has; negative: at least so many
}

// touchNothing are commands that write, and act on no key. Every other one without a place for keys may act on each key.
var touchNothing = []string{"FUNCTION|LOAD", "FUNCTION|DELETE", "FUNCTION|FLUSH", "FUNCTION|RESTORE"}

// ReadTable asks a server.
func ReadTable(ctx context.Context, conn redis.Conn) (Table, error) {
	reply, err := redis.Values(redis.DoContext(conn, ctx, "COMMAND", "INFO")) // from 7.0 on these are all
	if err != nil || len(reply) == 0 {
		reply, err = redis.Values(redis.DoContext(conn, ctx, "COMMAND"))
	}
	if err != nil {
		return nil, err
	}
	t := Table{}
	for _, one := range reply {
		if err := t.Take(one); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Take takes in an entry: name, arity, flags, first key, last key, step; from Redis 7.0 on also ACL categories, tips, key specifications, and the
// commands that it contains.
func (t Table) Take(reply any) error {
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
	s.arity, _ = redis.Int(fields[1], nil)
	name = strings.ToUpper(name)
	s.writes = s.writes && !slices.Contains(touchNothing, name)
	if len(fields) > 9 {
		contained, _ := redis.Values(fields[9], nil)
		s.container = len(contained) > 0
		for _, one := range contained {
			if err := t.Take(one); err != nil {
				return err
			}
		}
	}
	t[name] = s
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

// of returns the name and syntax of a command, and whether the server knows it. One that was renamed is not known.
func (t Table) of(c *Command) (name string, s syntax, known bool) {
	name = c.Words[0]
	if s, known = t[name]; s.container && len(c.Words) > 1 {
		name += "|" + strings.ToUpper(c.Words[1])
		s, known = t[name]
	}
	return name, s, known
}

// Writes tells that a command can change a key. What the server does not know by that name can.
func (t Table) Writes(c *Command) bool {
	_, s, known := t.of(c)
	return s.writes || !known
}

// MayWrite tells the same of a name as INFO commandstats has it, or of the first word of a command.
func (t Table) MayWrite(name string) bool {
	s, known := t[strings.ToUpper(name)]
	return s.writes || s.container || !known
}

// Name is a command as INFO commandstats names it. It is empty where the server does not know it.
func (t Table) Name(c *Command) string {
	name, _, known := t.of(c)
	if !known {
		return ""
	}
	return strings.ToLower(name)
}

// Everywhere tells that a command may act on every key there is: it writes, and has no place for keys.
func (t Table) Everywhere(c *Command) bool {
	_, s, known := t.of(c)
	return known && s.writes && s.first == 0 && !s.movable
}

// ragged are forms of the commands whose keys have no fixed place: K is one key, and O another one.
var ragged = map[string][]string{
	"sort": {"K", "O STORE K"}, "zunionstore": {"K 1 O", "O 1 K"}, "zinterstore": {"K 1 O", "O 1 K"}, "zdiffstore": {"K 1 O", "O 1 K"},
	"lmpop": {"1 K LEFT"}, "zmpop": {"1 K MIN"}, "blmpop": {"1 1 K LEFT"}, "bzmpop": {"1 1 K MIN"}, "xreadgroup": {"GROUP 1 1 STREAMS K 1"},
	"migrate": {"h 1 K 0 1", "h 1  0 1 KEYS O K"}, "georadius": {"K 1 1 1 m", "O 1 1 1 m STORE K"}, "georadiusbymember": {"K 1 1 m", "O 1 1 m STORE K"},
}

// Forms are words that send a command, as INFO commandstats names it, with a key in one of its places after the other, and another one in the
// rest. There is none where the places are not known.
func (t Table) Forms(name, key, other string) (forms [][]string) {
	s := t[strings.ToUpper(name)]
	for _, form := range ragged[name] {
		words := append([]string{strings.ToUpper(name)}, strings.Split(form, " ")...)
		for i, w := range words {
			words[i] = cmp.Or(map[string]string{"K": key, "O": other}[w], w)
		}
		forms = append(forms, words)
	}
	if s.movable || s.first == 0 {
		return forms
	}
	words := strings.Split(strings.ToUpper(name), "|")
	for len(words) < max(s.arity, -s.arity, s.first+1, s.last+1) {
		words = append(words, "1")
	}
	last := s.last
	if last < 0 {
		last += len(words)
	}
	for i := s.first; i <= last; i += s.step {
		words[i] = other
	}
	for i := s.first; i <= last; i += s.step {
		form := slices.Clone(words)
		form[i] = key
		forms = append(forms, form)
	}
	return forms
}

// Touched are the keys that a command can have touched, in any position, and whether that is all of them. Where the keys of a command have no
// fixed place, or the command is not known, each word that may be a key is one. What a script does is not in the command that
// calls it; its keys are. The result is valid as long as the command's words.
func (t Table) Touched(c *Command) (keys []string, all bool) {
	_, s, known := t.of(c)
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
