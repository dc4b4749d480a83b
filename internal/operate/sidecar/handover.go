package sidecar

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// A sidecar of a handover locks on two servers. On Old the service's own commands act as they came, so Old is what a bare server is. On New they are
// what they are at stage modern: a token in the service's name. At stage both
//
//  1. what takes a lock acts on Old first, and where Old grants it, takes the token on New before the service hears of it. Where New refuses,
//     Old's key becomes again what it was, if it still has the service's text, and the service hears "held";
//  2. what gives back acts on New first. A key of another's token on New is spared on both;
//  3. a lock is free only if both say so: GET shows what is live, and a GETSET is answered by a time that is over only where New was taken too;
//  4. what cannot be done on both is refused.
//
// Who looks at the two servers sees where a lock is held: on Old alone, on both, on New alone. That is what this member reports, so the
// record waits for it, and a sidecar that is started again knows it too. Where the service's other keys are on the server that a
// lock's command goes to, and nothing of that lock is on the other one, the command stays on the service's own connection.

// exchange is a command of the service that this process carries out by itself.
type exchange struct {
	*translator
	o     *order
	rules protocol.Sidecar
	name  string
	args  [][]byte
	at    []int // the words that are keys
	key   string
	known command
}

// run carries the command out at the stage that stands.
func (x *exchange) run() any {
	switch {
	case !x.o.Lives():
		return x.none()
	case x.o.Stage == stages.Old:
		return x.old()
	case x.o.Stage == stages.New:
		return x.new()
	}
	switch x.name {
	case "SETNX":
		return x.take()
	case "SET":
		if has(x.args[3:], "NX") && !has(x.args[3:], "GET") {
			return x.take()
		}
		if x.option("GET") {
			return x.swap()
		}
	case "GETSET":
		return x.swap()
	case "GET":
		return x.get()
	case "DEL", "UNLINK":
		n := int64(0)
		for _, i := range x.at {
			x.key = string(x.args[i])
			switch freed := x.del().(type) {
			case int64:
				n += freed
			default:
				return freed
			}
		}
		return n
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST", "EVAL", "EVALSHA":
		if len(x.at) == 1 {
			return x.holds()
		}
	case "EXISTS", "PTTL", "TTL", "TYPE", "STRLEN":
		if len(x.at) == 1 {
			return x.look()
		}
	}
	return fmt.Errorf("%s cannot act on two servers: at stage both a lock is taken by SETNX, SET NX or GETSET and given back by DEL; "+
		"other commands go on at stage old, and at stage new", x.name)
}

// none is the answer where this member may not act. Giving back has no bound.
func (x *exchange) none() any {
	switch {
	case x.name == "SETNX":
		return int64(0)
	case x.name == "SET" && has(x.args[3:], "NX"):
		return nil
	case x.name == "GETSET":
		return []byte(x.far)
	case x.name == "GET":
		return x.get()
	case (x.name == "DEL" || x.name == "UNLINK") && len(x.at) == 1:
		return x.del()
	}
	return errors.New("this member cannot report to the record, and its lease is over: nothing may act; see its log")
}

// take is SETNX, or SET with NX.
func (x *exchange) take() any {
	took, err := x.atOld(x.words()...)
	if err != nil || !yes(took) {
		return or(took, err)
	}
	text := string(x.args[2])
	command := x.rules.SetNX(x.now(), x.key, text, x.sidecar.token(x.o), protocol.FormSetNX)
	if len(x.args) > 4 { // PX or EX: Old has read it
		ms, err := x.atOld("PTTL", x.key)
		if left, ok := ms.(int64); err == nil && ok && left > 0 {
			command.TTL, command.Sidecar.Form = time.Duration(left)*time.Millisecond, protocol.FormTimed
		}
	}
	n, err := x.atNew(command)
	if n == int64(1) && err == nil && time.Now().Before(x.o.Until) {
		return took
	}
	if n == int64(1) || err != nil { // it may have been taken, or still be
		x.giveBack(command.Value)
	}
	if undone := x.put(text, nil); err == nil {
		err = undone
	}
	switch {
	case err != nil:
		return err
	case x.name == "SET":
		return nil
	}
	return int64(0)
}

// swap is GETSET. What it takes for over is taken on New before the service hears of it.
func (x *exchange) swap() any {
	text := string(x.args[2])
	before, err := x.atOld("GETSET", x.key, text)
	if err != nil {
		return err
	}
	wins := x.rules.GetSet(x.now(), x.key, text, x.sidecar.token(x.o))
	switch {
	case x.over(before):
		wins.Sidecar.Form = protocol.FormTakes
	case before != nil:
		wins.Sidecar.Form = protocol.FormLoses
	}
	seen, err := x.atNew(wins)
	switch {
	case err != nil: // it may have been taken
		x.giveBack(wins.Value)
		if before == nil || x.over(before) {
			_ = x.put(text, before)
		}
		return err
	case seen == nil && time.Now().After(x.o.Until):
		x.giveBack(wins.Value)
		_ = x.put(text, before)
		return []byte(x.far)
	case seen == nil, x.over(seen) && before != nil: // granted, or it is the service's own
		return before
	case before == nil || x.over(before): // what is live lives on New alone, be it the service's own: nothing stays here
		return or(seen, x.put(text, before))
	case textOf(seen) == x.far:
		return seen
	}
	return before
}

// get is GET: what is live on either.
func (x *exchange) get() any {
	text, err := x.atOld("GET", x.key)
	if err != nil || text != nil && !x.over(text) {
		return or(text, err)
	}
	seen, err := x.atNew(x.rules.Get(x.now(), x.key))
	if err != nil || seen != nil && (text == nil || !x.over(seen)) {
		return or(seen, err)
	}
	return text
}

// del gives back on New first. What another's token holds there is spared here too. On Old goes what stood there when New was asked: who takes the key over
// meanwhile keeps it.
func (x *exchange) del() any {
	x.sidecar.keys.given(x.sidecar, x.key)
	freed := int64(0)
	for range 20 { // a client that loses a GETSET changes the value
		text, err := x.atOld("GET", x.key)
		other := errorIs(err, "WRONGTYPE")
		if err != nil && !other {
			return err
		}
		n, err := x.atNew(x.rules.Del(x.now(), x.key))
		if err != nil {
			return err
		}
		if n == int64(1) {
			freed = 1
		} else if seen, err := x.atNew(x.rules.Get(x.now(), x.key)); err != nil {
			return err
		} else if seen != nil {
			return freed
		}
		if other {
			return or(x.atOld("DEL", x.key))
		}
		if text == nil {
			return freed
		}
		n, err = x.atOld("EVAL", putScript, 1, x.key, text)
		if err != nil || n == int64(1) {
			return or(n, err)
		}
	}
	return fmt.Errorf("%s: others change the key all the time; send it again", x.name)
}

// holds is what acts on a lock that the service has: EXPIRE and the like, and a script. Nothing says here what a script takes.
func (x *exchange) holds() any {
	seen, err := x.atNew(x.rules.Get(x.now(), x.key))
	switch {
	case errorIs(err, "WRONGTYPE"):
		return or(x.runAtNew(x.args))
	case err != nil:
		return err
	case seen == nil && x.sidecar.keys.onOld(x.key): // taken at stage old: Old alone has it, and the record waits for it
		return or(x.atOld(x.words()...))
	case seen == nil && !x.known.keys.Counted:
		return or(x.runAtNew(x.args)) // on nothing: 0, or what is wrong with it
	case seen == nil:
		return fmt.Errorf("%s cannot act on two servers where the service holds no lock: a script may take one; take it with SETNX or SET NX at stage both, or by a script at stages old and new", x.name)
	}
	there, fine := x.atOld("GET", x.key)
	reply, err := x.runAtNew(x.args)
	alone := textOf(there) != textOf(seen) // the lock is New's, or another service's text stands over it, of which a script knows nothing
	if err != nil || fine != nil || alone && (x.known.keys.Counted || textOf(seen) == x.far) {
		return or(reply, errors.Join(err, fine))
	}
	if _, err = x.atOld(x.words()...); err != nil {
		return err
	}
	return reply
}

// look is a read: of Old's key, or of New's where Old has none.
func (x *exchange) look() any {
	reply, err := x.atOld(x.words()...)
	if there, fine := x.atOld("EXISTS", x.key); err != nil || fine != nil || there == int64(1) {
		return or(reply, errors.Join(err, fine))
	}
	return or(x.runAtNew(x.args))
}

// old is any command at stage old: it acts on Old as it came. What of the service's lock is on New since a stage both is given back, so nothing there
// ends at another time.
func (x *exchange) old() any {
	for _, key := range x.leftover(0) {
		x.sidecar.keys.alone(key, 0)
		_, _ = x.atNew(x.rules.Del(x.now(), key)) // else it ends with its lease
	}
	return or(x.atOld(x.words()...))
}

// new is any command at stage new: it acts on New. Unless New's key is another's, no text stays on Old since a stage both, where Old answers: at the next
// stage both it would keep everybody out. It may be a text of another service, which has lost a GETSET.
func (x *exchange) new() any {
	for _, key := range x.leftover(2) {
		clears := func() bool {
			seen, err := x.atNew(x.rules.Get(x.now(), key))
			return err == nil && textOf(seen) != x.far && (seen != nil || x.name == "DEL" || x.name == "UNLINK")
		}
		if !clears() { // Old may be switched off: only who has something to give back waits for it
			continue
		}
		if text, err := x.atOld("GET", key); err == nil && text != nil && clears() { // what it read is no text of one who came later
			x.sidecar.keys.alone(key, 2)
			_, _ = x.atOld("EVAL", putScript, 1, key, text)
		}
	}
	return or(x.onNew())
}

// leftover are the keys of a command that is no mere read of which something may be where this stage's commands do not go.
func (x *exchange) leftover(stage int) (keys []string) {
	for _, i := range x.at {
		key := string(x.args[i])
		if x.known.mode != reads && x.name != "GET" && x.sidecar.keys.elsewhere(key, stage, time.Now()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// option tells whether a SET has one word more, and which.
func (x *exchange) option(name string) bool {
	return len(x.args) == 4 && strings.EqualFold(string(x.args[3]), name)
}

// takes tells whether the command is an attempt to take the lock by a text.
func (x *exchange) takes() bool {
	return x.name == "SETNX" || x.name == "GETSET" || x.name == "SET" && (x.option("NX") || x.option("GET"))
}

func (x *exchange) onNew() (any, error) {
	if command, _, own := x.own(x.o, &x.rules, x.sidecar.opts.Clock(), x.name, x.args); own {
		return x.atNew(command)
	}
	if x.name == "FCALL" {
		return nil, fmt.Errorf("%s: a sidecar cannot carry it out on a lock's key that is not where the service's other keys are", x.name)
	}
	return x.runAtNew(x.args)
}

// now is the service's clock.
func (x *exchange) now() protocol.Instant { return protocol.InstantOf(x.sidecar.opts.Clock()) }

// over tells whether the service takes a text for a lease that is over.
func (x *exchange) over(text any) bool {
	return text != nil && x.dialect != nil && x.dialect.JudgeAsOldCode(textOf(text), x.now(), "") == protocol.Expired
}

// words are the command as it came. A script goes with its text: Old may not have it.
func (x *exchange) words() []any {
	words := redis.Args{}.AddFlat(x.args)
	if x.name == "EVALSHA" {
		if text, ok := x.sidecar.bodies.of(string(x.args[1])); ok {
			words[0], words[1] = "EVAL", text
		}
	}
	return words
}

// putScript puts a text, or nothing, in the place of another one, if that stands there.
const putScript = `if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('DEL', KEYS[1]) end
return 1`

// put makes Old's key again what it was before the service's text.
func (x *exchange) put(text string, before any) error {
	words := []any{"EVAL", putScript, 1, x.key, text}
	if before != nil {
		words = append(words, before)
	}
	_, err := x.atOld(words...)
	return err
}

// giveBack gives back what an attempt may have taken on New, if it has.
func (x *exchange) giveBack(token string) {
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return
	}
	kept, err := wire.Do(conn, x.sidecar.opts.ReplyTimeout, x.rules.Keep(x.now(), x.key, false))
	_ = conn.Close()
	if err == nil && kept.Text == token {
		_, _ = x.atNew(x.rules.Del(x.now(), x.key))
	}
}
