package sidecar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/wire"
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

// across rewrites a command on a lock's key. It does not where the command is to be translated as at stage modern.
func (t *translator) across(c *proxy.Client, here *place, name string, known command, args [][]byte, o *order, now time.Time, out []byte) (verdict proxy.Verdict, with []byte, done bool) {
	s, at := t.sidecar, keysOf(known.keys, args)
	home := map[stages.Stage]bool{stages.Old: s.opts.DataOld, stages.New: !s.opts.DataOld}[o.Stage]
	for _, i := range at {
		home = home && !s.keys.elsewhere(string(args[i]), stages.Number(o.Stage), now)
	}
	refuse := func(why string) (proxy.Verdict, []byte, bool) {
		verdict, with := t.refuse(c, name, args, why, out)
		return verdict, with, true
	}
	again := func() (proxy.Verdict, []byte, bool) {
		verdict, with := t.Rewrite(c, args, out)
		return verdict, with, true
	}
	x := &exchange{translator: t, o: o, rules: o.rules(t), name: name, args: args, at: at, key: string(args[at[0]]), known: known}
	if home && (name == "WATCH" || here.multi) {
		here.under(o, at, args)
	}
	switch {
	case known.mode == translated && len(args) != known.least: // too many words
		return proxy.Pass, out, true
	case home && known.mode == reads:
		return proxy.Pass, out, true
	case home && o.Stage == stages.New && x.takes():
		return proxy.Pass, out, false // it is noted when it is translated
	case home && (o.Stage == stages.New || known.mode == others):
		if !s.keys.begin(x, now) {
			return again()
		}
		return proxy.Pass, out, known.mode == others
	case home && o.Lives() && !c.Uncounted:
		if !t.note(o, name, args, now) {
			return again()
		}
		c.Bound = o.Until
		return proxy.Pass, out, true
	case c.Uncounted:
		return refuse("on a connection that has subscribed, or that wants no replies: send it over another one")
	case here.database != s.opts.Database:
		return refuse("in another database than the one that --redis names: its locks are there")
	case here.multi:
		return refuse(fmt.Sprintf("in a transaction: at stage %v the lock, or something of it, is not where the other keys are; send it outside of MULTI", o.Stage))
	case name == "WATCH":
		return refuse(fmt.Sprintf("on a lock: at stage %v it is not where the other keys are", o.Stage))
	case !c.Alone:
		return proxy.Apart, out, true
	}
	for _, i := range at {
		if !t.Covers(args[i]) {
			return refuse(fmt.Sprintf("on keys of which some are locks: at stage %v these are not where the others are; send one command for each", o.Stage))
		}
	}
	lives := o.Lives()
	if !lives {
		s.counts.late.Add(1)
	}
	if !s.keys.begin(x, now) {
		return again()
	}
	s.counts.translated(name).Add(1)
	one := s.stripe(x.key)
	one.Lock()
	reply := x.run()
	one.Unlock()
	s.keys.lookNow(x.key)
	if lives && time.Now().After(o.Until) && yes(reply) {
		reply = fmt.Errorf("%s: the lease of this member is over; what was taken ends with its lease", name)
	}
	if lives {
		c.Bound = o.Until
	}
	verdict, with = answer(out, reply)
	return verdict, with, true
}

// refuse is an error in the place of a command.
func (t *translator) refuse(c *proxy.Client, name string, args [][]byte, why string, out []byte) (proxy.Verdict, []byte) {
	t.sidecar.counts.refused.Add(1)
	t.sidecar.opts.Log.Warn("refused", "client", c.Addr, "command", name, "key", string(args[1]), "why", why)
	return proxy.Refuse, append(out, "ERR lockmigrate sidecar: "+name+" "+why...)
}

// under notes that a transaction, or a WATCH, is of an order: it ends with it.
func (p *place) under(o *order, at []int, args [][]byte) {
	if p.since == nil {
		p.since = o
	}
	for _, i := range at {
		p.keys = append(p.keys, string(args[i]))
	}
}

// exec ends a transaction of locks. Where the order has changed since its first command, nobody knows what its WATCH has seen, or where the locks
// are by now.
func (t *translator) exec(c *proxy.Client, here *place, name string, o *order, now time.Time) proxy.Verdict {
	if since := here.since; since != nil && name == "EXEC" {
		if since.Epoch != o.Epoch || !o.Lives() || c.Uncounted {
			return proxy.Cut
		}
		for _, key := range here.keys {
			if o.Stage == stages.Old && !t.sidecar.keys.passed(t.sidecar, o, key, now) {
				return proxy.Cut
			}
		}
		c.Bound = o.Until
	}
	if name == "EXEC" || name == "DISCARD" || name == "RESET" {
		here.since, here.keys = nil, nil
	}
	return proxy.Pass
}

// answer makes a command that any server answers by a reply.
func answer(out []byte, reply any) (proxy.Verdict, []byte) {
	switch v := reply.(type) {
	case int64:
		return proxy.Replace, wire.Append(out, "EVAL", "return tonumber(ARGV[1])", "0", fmt.Sprint(v))
	case []byte:
		return proxy.Replace, wire.Append(out, "ECHO", string(v))
	case string:
		return proxy.Replace, wire.Append(out, "EVAL", "return redis.status_reply(ARGV[1])", "0", v)
	case redis.Error:
		return proxy.Refuse, append(out, v...)
	case error:
		return proxy.Refuse, append(out, "ERR lockmigrate sidecar: "+strings.ReplaceAll(v.Error(), "\n", "; ")...)
	case nil:
		return proxy.Replace, wire.Append(out, "EVAL", "return false", "0")
	}
	return proxy.Refuse, append(out, fmt.Sprintf("ERR lockmigrate sidecar: a reply of type %T cannot be passed on; send this command where the lock is: --data", reply)...)
}

// yes tells whether a reply may say that something is held, or goes on to be.
func yes(reply any) bool {
	_, failed := reply.(error)
	return !failed && reply != nil && reply != int64(0)
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
		if slices.ContainsFunc(x.args[3:], func(w []byte) bool { return strings.EqualFold(string(w), "NX") }) &&
			!slices.ContainsFunc(x.args[3:], func(w []byte) bool { return strings.EqualFold(string(w), "GET") }) {
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
	case x.name == "SET" && slices.ContainsFunc(x.args[3:], func(w []byte) bool { return strings.EqualFold(string(w), "NX") }):
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
			command.TTL = time.Duration(left) * time.Millisecond
			command.Sidecar.Until = x.now().Add(command.TTL) // it is not renewed, whatever becomes of this process
		}
	}
	n, err := x.atNew(command)
	if n == int64(1) && len(x.args) > 4 { // the service sees that TTL
		_, err = x.runAtNew([][]byte{[]byte("PEXPIRE"), []byte(x.key), []byte(fmt.Sprint(command.TTL.Milliseconds()))})
	}
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
	case string(bytesOf(seen)) == x.far:
		if before == nil || x.over(before) { // it took nothing: nothing of it stays
			if err := x.put(text, before); err != nil {
				return err
			}
		}
		return seen
	case before == nil || x.over(before):
		return seen // the service's own lock, which lives on New
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
	if err != nil || fine != nil || string(bytesOf(there)) != string(bytesOf(seen)) { // the lock is New's alone
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
	if x.changes() {
		for _, i := range x.at {
			if key := string(x.args[i]); x.sidecar.keys.elsewhere(key, 0, time.Now()) && (x.mine(key) || x.frees(key)) {
				x.sidecar.keys.alone(key, 0)
				_, _ = x.atNew(x.rules.Del(x.now(), key)) // else it ends with its lease
			}
		}
	}
	return or(x.atOld(x.words()...))
}

// new is any command at stage new: it acts on New. What of the service's lock is on Old since a stage both is given back, where Old answers: it keeps
// nobody out any more.
func (x *exchange) new() any {
	if x.changes() {
		for _, i := range x.at {
			key := string(x.args[i])
			if !x.sidecar.keys.elsewhere(key, 2, time.Now()) || !x.mine(key) && !x.frees(key) {
				continue
			}
			if text, err := x.atNew(x.rules.Get(x.now(), key)); err == nil && text != nil {
				x.sidecar.keys.alone(key, 2)
				_, _ = x.atOld("EVAL", putScript, 1, key, text)
			}
		}
	}
	return or(x.onNew())
}

// changes tells whether the command is no mere read.
func (x *exchange) changes() bool { return x.known.mode != reads && x.name != "GET" }

// frees tells whether a DEL is of a text that stands on both servers by itself: a GETSET has put it over another text.
func (x *exchange) frees(key string) bool {
	if x.name != "DEL" && x.name != "UNLINK" {
		return false
	}
	old, err1 := x.atOld("GET", key)
	new, err2 := x.atNew(x.rules.Get(x.now(), key))
	return err1 == nil && err2 == nil && old != nil && string(bytesOf(old)) == string(bytesOf(new))
}

// mine tells whether the service's own token stands on New's key.
func (x *exchange) mine(key string) bool {
	kept, err := x.keep(x.rules.Keep(x.now(), key, false))
	return err == nil && (kept.Int == protocol.KeepDone || kept.Int == protocol.KeepRepair)
}

// keep asks New by the keeper's script.
func (x *exchange) keep(command protocol.Command) (protocol.Reply, error) {
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return protocol.Reply{}, err
	}
	defer conn.Close()
	return wire.Do(conn, x.sidecar.opts.ReplyTimeout, command)
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
	plain := len(x.args) == x.known.least
	token := func() string { return x.sidecar.token(x.o) }
	switch {
	case x.name == "GET" && plain:
		return x.atNew(x.rules.Get(x.now(), x.key))
	case (x.name == "DEL" || x.name == "UNLINK") && plain:
		x.sidecar.keys.given(x.sidecar, x.key)
		return x.atNew(x.rules.Del(x.now(), x.key))
	case x.name == "SETNX" && plain:
		return x.atNew(x.rules.SetNX(x.now(), x.key, string(x.args[2]), token(), protocol.FormSetNX))
	case x.name == "SET" && x.option("NX"):
		n, err := x.atNew(x.rules.SetNX(x.now(), x.key, string(x.args[2]), token(), protocol.FormSetNX))
		if err == nil && n == int64(1) {
			return "OK", nil
		}
		return nil, err
	case x.name == "GETSET" && plain, x.name == "SET" && x.option("GET"):
		return x.atNew(x.rules.GetSet(x.now(), x.key, string(x.args[2]), token()))
	case x.name == "FCALL":
		return nil, fmt.Errorf("%s: a sidecar cannot carry it out on a lock's key that is not where the service's other keys are", x.name)
	}
	return x.runAtNew(x.args)
}

// now is the service's clock.
func (x *exchange) now() protocol.Instant { return protocol.InstantOf(x.sidecar.opts.Clock()) }

// over tells whether the service takes a text for a lease that is over.
func (x *exchange) over(text any) bool {
	return text != nil && x.dialect != nil && x.dialect.JudgeAsOldCode(string(bytesOf(text)), x.now(), "") == protocol.Expired
}

// words are the command as it came. A script goes with its text: Old may not have it.
func (x *exchange) words() []any {
	words := make([]any, len(x.args))
	for i, w := range x.args {
		words[i] = w
	}
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
	if kept, err := x.keep(x.rules.Keep(x.now(), x.key, false)); err == nil && kept.Text == token {
		_, _ = x.atNew(x.rules.Del(x.now(), x.key))
	}
}

// atNew carries out a script of the sidecar on New.
func (x *exchange) atNew(command protocol.Command) (any, error) {
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return nil, x.failed("new", err)
	}
	defer conn.Close()
	command.NotAfter, command.Queue = x.o.notAfter, x.queue(command)
	x.sidecar.keys.longer(x.sidecar, command.TTL)
	reply, err := wire.Do(conn, x.sidecar.opts.ReplyTimeout, command)
	switch {
	case err != nil:
		return nil, x.failed("new", err)
	case reply.Kind == protocol.Integer:
		return reply.Int, nil
	case reply.Kind == protocol.Text:
		return []byte(reply.Text), nil
	}
	return nil, nil
}

// queue is the queue of a command: at stage both nobody waits on New for what Old decides.
func (x *exchange) queue(command protocol.Command) string {
	if x.o.Stage == stages.Both && command.Op == protocol.SidecarTake {
		return ""
	}
	return command.Queue
}

// runAtNew has sidecar_run.lua carry out a command on New.
func (x *exchange) runAtNew(args [][]byte) (any, error) {
	body, call, why := x.call(x.name, x.known.keys, x.known.mode, args, x.sidecar.opts.Clock(), "")
	if why != "" {
		return nil, redis.Error(why)
	}
	script := runScript
	if body != nil {
		script = redis.NewScript(-1, scripts.SidecarRun.Around(string(body)))
	}
	words := make([]any, len(call))
	for i, w := range call {
		words[i] = w
	}
	ctx, cancel := context.WithTimeout(context.Background(), x.sidecar.opts.ReplyTimeout)
	defer cancel()
	conn, err := x.sidecar.open(x.sidecar.opts.Pool)
	if err != nil {
		return nil, x.failed("new", err)
	}
	defer conn.Close()
	reply, err := script.DoContext(ctx, conn, words...)
	return reply, x.failed("new", err)
}

var runScript = redis.NewScript(-1, scripts.SidecarRun.Bare())

// atOld carries out a command on Old as it came.
func (x *exchange) atOld(words ...any) (any, error) {
	conn, err := x.sidecar.openOld()
	if err != nil {
		return nil, x.failed("old", err)
	}
	reply, err := redis.DoWithTimeout(conn, x.sidecar.opts.ReplyTimeout, text(words[0]), words[1:]...)
	x.sidecar.closeOld(conn)
	return reply, x.failed("old", err)
}

// failed says on which server something went wrong. What a server answers is its own word.
func (x *exchange) failed(which string, err error) error {
	var refused redis.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("%s: the %s server has not answered (%w): it is not known whether it has acted; what was taken ends with its lease", x.name, which, err)
}

func errorIs(err error, word string) bool {
	return err != nil && strings.HasPrefix(err.Error(), word)
}

func or(reply any, err error) any {
	var refused redis.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case err != nil:
		return err
	}
	return reply
}

func text(word any) string { return string(bytesOf(word)) }

func bytesOf(word any) []byte {
	switch v := word.(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	}
	return nil
}

// open is a connection to New within the bound of a command.
func (s *Sidecar) open(pool lockmigrate.Pool) (redis.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ReplyTimeout)
	defer cancel()
	return pool.GetContext(ctx)
}

// oldConns are connections to Old that nobody uses. They are never given back to their pool, so each is told to the record once.
type oldConns struct {
	opened lockers.Opened
	mu     sync.Mutex
	idle   []idleConn
}

type idleConn struct {
	redis.Conn
	since time.Time
}

const mostIdle, idleFor = 16, 5 * time.Second

func (s *Sidecar) openOld() (redis.Conn, error) {
	for {
		s.old.mu.Lock()
		n := len(s.old.idle) - 1
		if n < 0 {
			s.old.mu.Unlock()
			break
		}
		c := s.old.idle[n]
		s.old.idle = s.old.idle[:n]
		s.old.mu.Unlock()
		if time.Since(c.since) > idleFor {
			if _, err := redis.DoWithTimeout(c.Conn, s.opts.ReplyTimeout, "PING"); err != nil {
				_ = c.Close()
				continue
			}
		}
		return c.Conn, nil
	}
	conn, err := s.open(s.opts.Old)
	if err == nil {
		s.old.opened.Ask(conn, s.opts.ReplyTimeout)
	}
	return conn, err
}

func (s *Sidecar) closeOld(conn redis.Conn) {
	s.old.mu.Lock()
	defer s.old.mu.Unlock()
	switch {
	case conn.Err() != nil: // the others are hardly better
		for _, c := range s.old.idle {
			_ = c.Close()
		}
		s.old.idle = nil
		fallthrough
	case len(s.old.idle) >= mostIdle:
		_ = conn.Close()
		return
	}
	s.old.idle = append(s.old.idle, idleConn{conn, time.Now()})
}

// ErrUnfit says that the record is not for this sidecar: somebody has to change one of them.
var ErrUnfit = errors.New("this sidecar cannot follow the record")

// fits says why this sidecar cannot follow a record: package handover asks the same. At stage new nobody needs Old any more, so one that cannot be asked
// is asked again when the stage is another.
func (s *Sidecar) fits(ctx context.Context, o stages.Order) error {
	switch {
	case s.fitted:
		return nil
	case (o.Handover == nil) != (s.opts.Old == nil):
		return fmt.Errorf("%w: --handover is for the record of a handover, and --namespace for one that moves from legacy to modern", ErrUnfit)
	case s.opts.Old == nil:
		return nil
	}
	var ours stages.Halves
	var errs [2]error
	ours.Old.Mark, errs[0] = stages.ReadMark(ctx, s.opts.Old, o.Namespace, s.opts.ReplyTimeout)
	ours.New.Mark, errs[1] = stages.ReadMark(ctx, s.opts.Pool, o.Namespace, s.opts.ReplyTimeout)
	switch err := errors.Join(errs[:]...); {
	case errs[0] != nil && errs[1] == nil && o.Stage == stages.New:
		return nil
	case err != nil:
		return err
	case ours.Old.Mark == ours.New.Mark:
		return fmt.Errorf("%w: both servers are one", ErrUnfit)
	}
	if err := o.Handover.Differs(ours); err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	s.fitted = true
	return nil
}

// stripe is what the commands on a key that this process carries out by itself wait for.
func (s *Sidecar) stripe(key string) *sync.Mutex {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return &s.stripes[h%uint32(len(s.stripes))]
}

// sight is what stands on the two servers.
type sight struct {
	asked, there, live bool // Old has answered; it has a value; and that is not over
	held               bool // somebody has New's key
}

// sights looks at keys on both servers.
func (s *Sidecar) sights(keys []string) map[string]sight {
	all := map[string]sight{}
	if s.opts.Old == nil {
		return all
	}
	conn, err := s.openOld()
	if err != nil {
		return all
	}
	defer s.closeOld(conn)
	for _, key := range keys {
		_ = conn.Send("GET", key)
		_ = conn.Send("PTTL", key)
	}
	_ = conn.Flush()
	for _, key := range keys {
		value, err := redis.ReceiveWithTimeout(conn, s.opts.ReplyTimeout)
		ms, _ := redis.Int64(redis.ReceiveWithTimeout(conn, s.opts.ReplyTimeout))
		s.keys.longer(s, time.Duration(ms)*time.Millisecond)
		if err == nil || errorIs(err, "WRONGTYPE") {
			all[key] = sight{asked: true, there: err != nil || value != nil, live: err != nil || ms > 0 || value != nil && s.lives(text(value))} // with a TTL it may be a lock of SET NX PX, whatever its text
		}
	}
	other, err := s.open(s.opts.Pool)
	if err != nil {
		return all
	}
	defer other.Close()
	for _, key := range keys {
		_ = other.Send("EXISTS", key)
	}
	_ = other.Flush()
	for _, key := range keys {
		n, err := redis.ReceiveWithTimeout(other, s.opts.ReplyTimeout)
		v := all[key]
		v.held = err == nil && n == int64(1)
		all[key] = v
	}
	return all
}

// lives tells whether a text on Old may be a lock of the service: not where each of its dialects that can read it takes it for over.
func (s *Sidecar) lives(value string) bool {
	s.dialectsMu.Lock()
	defer s.dialectsMu.Unlock()
	now := protocol.InstantOf(s.opts.Clock())
	for _, d := range s.dialects {
		if d == nil || value == d.Forever {
			return true
		}
		if ends, ok := d.Written(value); !ok || now < ends.Add(time.Second) { // a count of seconds lasts to the end of its second
			return true
		}
	}
	return false
}
