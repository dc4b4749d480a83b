package sidecar

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// translator is a proxy.Rewriter.
type translator struct {
	sidecar *Sidecar
	dialect *protocol.Dialect // nil: the service writes no expiry
	far     string
	unread  atomic.Bool // a text that is no time of the dialect was logged
}

// first says that a command's key is its first word.
var first = proxy.Keys{First: 1, Last: 1, Step: 1}

// anywhere says that each word may be a key.
var anywhere = proxy.Keys{First: 1, Last: -1, Step: 1}

// counted says that the second word tells how many keys follow it.
var counted = proxy.Keys{First: 3, Step: 1, Counted: true}

// What another's token does to a command on its key, see sidecar_run.lua; and what only a sidecar of a handover looks at.
const (
	translated = ""       // it has a script of its own
	runs       = "run"    // nothing: the command takes nothing from a holder
	spares     = "spare"  // the key is left out
	refused    = "refuse" // the command is refused
	reads      = "reads"  // it changes nothing
	others     = "others" // it acts where the lock is, or not at all
)

// command says what a sidecar has to know of a command.
type command struct {
	keys  proxy.Keys
	mode  string
	least int // words of it; with fewer the server says what is wrong
}

// commands are those that can touch a lock, or that change the database in which a client is. A sidecar of a handover looks at more of them: at those
// that only read, or that change what is no text, because they act on nothing where the lock is not where the service's other keys are.
var commands = map[string]command{
	"SELECT": {}, "RESET": {}, "MULTI": {}, "EXEC": {}, "DISCARD": {}, "SCRIPT": {},
	"SETNX": {first, translated, 3}, "SET": {first, refused, 3}, "GET": {first, translated, 2}, "GETSET": {first, translated, 3},
	"DEL": {anywhere, spares, 2}, "UNLINK": {anywhere, spares, 2},
	"EXPIRE": {first, spares, 3}, "PEXPIRE": {first, spares, 3}, "EXPIREAT": {first, spares, 3}, "PEXPIREAT": {first, spares, 3}, "PERSIST": {first, spares, 2},
	"EVAL": {counted, runs, 3}, "EVALSHA": {counted, runs, 3}, "FCALL": {counted, runs, 3},
	"SETEX": {first, refused, 4}, "PSETEX": {first, refused, 4}, "APPEND": {first, refused, 3}, "SETRANGE": {first, refused, 4}, "SETBIT": {first, refused, 4},
	"INCR": {first, refused, 2}, "INCRBY": {first, refused, 3}, "INCRBYFLOAT": {first, refused, 3}, "DECR": {first, refused, 2}, "DECRBY": {first, refused, 3},
	"MSET": {everySecond, refused, 3}, "MSETNX": {everySecond, runs, 3}, "MSETEX": {anywhere, refused, 4},
	"GETDEL": {first, refused, 2}, "GETEX": {first, refused, 2}, "DELEX": {first, refused, 2}, "DELIFEQ": {first, runs, 3},
	"BITOP": {proxy.Keys{First: 2, Last: 2, Step: 1}, refused, 4}, "BITFIELD": {first, refused, 2}, "PFADD": {first, refused, 2}, "PFMERGE": {first, refused, 2},
	"SINTERSTORE": {first, refused, 3}, "SUNIONSTORE": {first, refused, 3}, "SDIFFSTORE": {first, refused, 3}, "ZINTERSTORE": {first, refused, 4},
	"ZUNIONSTORE": {first, refused, 4}, "ZDIFFSTORE": {first, refused, 4}, "ZRANGESTORE": {first, refused, 5}, "GEOSEARCHSTORE": {first, refused, 3},
	"SORT": {anywhere, refused, 2}, "GEORADIUS": {anywhere, refused, 6}, "GEORADIUSBYMEMBER": {anywhere, refused, 5}, "MIGRATE": {anywhere, refused, 6},
	"RESTORE": {first, refused, 4}, "COPY": {pair, refused, 3}, "RENAME": {pair, refused, 3}, "RENAMENX": {pair, refused, 3}, "MOVE": {first, refused, 3},
	"WATCH": {anywhere, reads, 2}, "MGET": {anywhere, reads, 2}, "EXISTS": {anywhere, reads, 2},
}

func init() {
	for mode, names := range map[string]string{
		reads:  "TTL PTTL TYPE STRLEN GETRANGE SUBSTR GETBIT BITCOUNT BITPOS DUMP EXPIRETIME PEXPIRETIME DIGEST HGET HGETALL SISMEMBER SMEMBERS ZSCORE LRANGE LLEN",
		others: "LPUSH RPUSH LPUSHX RPUSHX LPOP RPOP LSET LINSERT HSET HMSET HSETNX HINCRBY HINCRBYFLOAT HDEL SADD SREM SPOP ZADD ZINCRBY ZREM XADD GEOADD",
	} {
		for name := range strings.FieldsSeq(names) {
			commands[name] = command{first, mode, 2}
		}
	}
}

var (
	everySecond = proxy.Keys{First: 1, Last: -1, Step: 2}
	pair        = proxy.Keys{First: 1, Last: 2, Step: 1}
)

// Commands implements proxy.Rewriter.
func (t *translator) Commands() map[string]proxy.Keys {
	all := map[string]proxy.Keys{}
	for name, c := range commands {
		if t.sidecar.opts.Old != nil || c.mode != reads && c.mode != others {
			all[name] = c.keys
		}
	}
	return all
}

// Covers implements proxy.Rewriter.
func (t *translator) Covers(key []byte) bool { return t.sidecar.order.Load().covers(key) }

// Open implements proxy.Rewriter.
func (t *translator) Open(c *proxy.Client) {
	c.Data = &place{}
	t.sidecar.clients.came(before + c.ID)
}

// Close implements proxy.Rewriter.
func (t *translator) Close(c *proxy.Client) { t.sidecar.clients.went(before+c.ID, c.Cut) }

// place is where a client is: in a database, or in a transaction.
type place struct {
	database int  // by the SELECTs that it has sent; nowhere after one in a transaction
	strays   bool // it has sent a SELECT of another database than the namespace's
	multi    bool // a transaction is being written
	told     bool // that it is in another one

	// Of a handover: the order under which a transaction of locks, or a WATCH of one, began, and its keys.
	since *order
	keys  []string
}

const nowhere = -1

// moves follows what changes the database. Nobody reads whether the server has refused a SELECT: for lack of a right, before AUTH, or because
// there is no such database. Where the client is said to be elsewhere, its commands on locks are refused. Where it is said to be at home,
// and has been elsewhere, the scripts select the database themselves.
func (p *place) moves(name string, args [][]byte, home int) {
	switch {
	case name == "SELECT":
		n, err := strconv.Atoi(string(args[len(args)-1]))
		switch {
		case len(args) != 2 || err != nil || strconv.Itoa(n) != string(args[1]): // the server does not take it
			return
		case p.multi && n != p.database:
			n = nowhere
		}
		p.database, p.strays = n, p.strays || n != home
	case len(args) != 1: // the server does not take it
	case name == "RESET":
		*p = place{told: p.told, strays: p.strays}
	default:
		p.multi = name == "MULTI"
	}
}

// Rewrite implements proxy.Rewriter.
func (t *translator) Rewrite(c *proxy.Client, args [][]byte, out []byte) (proxy.Verdict, []byte) {
	s, o := t.sidecar, t.sidecar.order.Load()
	at := time.Now()
	name := strings.ToUpper(string(args[0]))
	here, known := c.Data.(*place), commands[name]
	if known.keys == (proxy.Keys{}) {
		if name == "SCRIPT" {
			s.bodies.loaded(args)
		} else {
			here.moves(name, args, s.opts.Database)
			c.Multi = here.multi
		}
		if s.opts.Old != nil {
			return t.exec(c, here, name, o, at), out
		}
		return proxy.Pass, out
	}
	if name == "EVAL" && len(args) > 2 {
		s.bodies.keep(args[1])
	}
	if len(args) < known.least || !known.keys.Fit(args) { // the server says what is wrong
		return proxy.Pass, out
	}
	if s.opts.Old != nil {
		if verdict, with, done := t.across(c, here, name, known, args, o, at, out); done {
			return verdict, with
		}
	}
	rules := o.rules(t)
	legacy := rules.Legacy && o.Ready && at.Before(o.Until)
	if legacy && !t.tokens(known.keys, args, at) {
		if !t.note(o, name, args, at) {
			return t.Rewrite(c, args, out)
		}
		return proxy.Pass, out
	}
	refuse := func(why string) (proxy.Verdict, []byte) { return t.refuse(c, name, args, why, out) }
	if here.database != s.opts.Database {
		if known.keys.Counted {
			return proxy.Pass, out
		}
		why := fmt.Sprintf("in database %d; the namespace's locks are in %d, which --redis names", here.database, s.opts.Database)
		if here.database == nowhere {
			why = "after a SELECT in a transaction: it is not known in which database; send SELECT again after EXEC or DISCARD"
		}
		if !here.told {
			here.told = true
			s.opts.Log.Error("a service in another database", "client", c.Addr, "command", name, "key", string(args[1]), "why", why)
		}
		return refuse(why)
	}
	wall, database := s.opts.Clock(), ""
	if s.opts.Database != 0 || here.strays {
		database = strconv.Itoa(s.opts.Database)
	}
	command, takes, own := t.own(o, &rules, wall, name, args)
	switch {
	case own && !(legacy && takes):
	case legacy && name != "FCALL": // a token of a later stage may stand there as yet
		return t.run(c, name, known.keys, cmp.Or(known.mode, runs), args, wall, database, out)
	case known.mode == translated: // too many words
		return proxy.Pass, out
	case name == "FCALL":
		return refuse("on a lock's key: a function cannot see the service's own text; send the script with EVAL")
	default:
		return t.run(c, name, known.keys, known.mode, args, wall, database, out)
	}
	command.NotAfter = o.notAfter
	switch over := command.Op == protocol.SidecarTake && command.Sidecar.Form != protocol.FormLoses && command.TTL == 0; {
	case over: // nothing is taken, so it waits for nothing
		s.counts.over.Add(1)
		s.opts.Log.Warn("the expiry is over by this host's clock: not taken", "client", c.Addr, "key", command.Key, "value", command.Sidecar.Text)
	case takes:
		switch waits, stale := s.keys.wait(s, o, &rules, c, &command, here.multi, at); {
		case stale:
			return t.Rewrite(c, args, out)
		case waits:
			return proxy.Hold, out
		}
		t.checkText(c.Addr, command.Key, command.Sidecar.Text)
	}
	s.counts.translated(name).Add(1)
	return proxy.Replace, appendRequest(out, c, command, database)
}

// own is the script that a command has of its own, if it has one. One that takes is an attempt at the lock.
func (t *translator) own(o *order, rules *protocol.Sidecar, wall time.Time, name string, args [][]byte) (c protocol.Command, takes, own bool) {
	now, key, plain, option := protocol.InstantOf(wall), string(args[1]), len(args) == commands[name].least, ""
	if name == "SET" && len(args) == 4 {
		option = strings.ToUpper(string(args[3]))
	}
	switch {
	case name == "GET" && plain:
		return rules.Get(now, key), false, true
	case (name == "DEL" || name == "UNLINK") && plain:
		t.sidecar.keys.given(t.sidecar, key)
		return rules.Del(now, key), false, true
	case name == "SETNX" && plain:
		return rules.SetNX(now, key, string(args[2]), t.sidecar.token(o), protocol.FormSetNX), true, true
	case option == "NX":
		return rules.SetNX(now, key, string(args[2]), t.sidecar.token(o), protocol.FormSet), true, true
	case name == "GETSET" && plain, option == "GET":
		return rules.GetSet(now, key, string(args[2]), t.sidecar.token(o)), true, true
	}
	return c, false, false
}

// note remembers, at stages legacy and old, which keys the service may hold: a later stage is told of them. It does not if the order has changed.
func (t *translator) note(o *order, name string, args [][]byte, at time.Time) bool {
	known := commands[name]
	if known.mode == spares || name == "GET" {
		return true
	}
	for _, i := range known.keys.In(args) {
		if key := string(args[i]); t.Covers(args[i]) && !t.sidecar.keys.passed(t.sidecar, o, key, at) {
			return false
		}
	}
	if name == "SETNX" || name == "GETSET" || name == "SET" && len(args) < 5 {
		t.checkText("", string(args[1]), string(args[2]))
	}
	if t.sidecar.opts.Old != nil && len(args) > 2 { // at stage legacy the text itself keeps others out
		rules := protocol.Sidecar{Dialect: t.dialect}
		t.sidecar.keys.longer(t.sidecar, rules.SetNX(protocol.InstantOf(t.sidecar.opts.Clock()), "", string(args[2]), "", protocol.FormSetNX).TTL)
	}
	return true
}

// tokens tells whether a token of this service, of a later stage, may stand on a key of a command.
func (t *translator) tokens(keys proxy.Keys, args [][]byte, at time.Time) bool {
	return slices.ContainsFunc(keys.In(args), func(i int) bool { return t.sidecar.keys.tokens(string(args[i]), at) })
}

// run makes a call of sidecar_run.lua of a command or a script.
func (t *translator) run(c *proxy.Client, name string, keys proxy.Keys, mode string, args [][]byte, wall time.Time, database string, out []byte) (proxy.Verdict, []byte) {
	t.sidecar.counts.translated(name).Add(1)
	body, call, why := t.call(name, keys, mode, args, wall, database)
	if why != "" {
		return proxy.Refuse, append(out, why...)
	}
	if body != nil {
		return proxy.Replace, wire.Append(out, slices.Concat([][]byte{[]byte("EVAL"), []byte(scripts.SidecarRun.Around(string(body)))}, call)...)
	}
	return proxy.Replace, proxy.AppendCall(out, c, calls[scripts.SidecarRun], call...)
}

// call are the words of a call of sidecar_run.lua behind its first two, and the script that it runs, if it is one. A script whose text nobody has seen
// is not known: why is the server's error.
func (t *translator) call(name string, keys proxy.Keys, mode string, args [][]byte, wall time.Time, database string) (body []byte, call [][]byte, why string) {
	words, at := args, keys.In(args)
	if keys.Counted {
		ok := true
		if body = args[1]; name == "EVALSHA" {
			body, ok = t.sidecar.bodies.of(string(args[1]))
		}
		if !ok {
			return nil, nil, "NOSCRIPT No matching script. Please use EVAL."
		}
		t.sidecar.counts.scripts.Add(1)
		words = args[keys.First+len(at):]
	} else if name == "SET" && has(args[3:], "NX") {
		mode = runs
	}
	var locks, beside, named [][]byte
	numbers := []byte{}
	for _, i := range at {
		covered := t.Covers(args[i])
		if !covered && mode == refused { // it may be no key
			continue
		}
		if named = append(named, args[i]); !covered || slices.ContainsFunc(locks, func(l []byte) bool { return bytes.Equal(l, args[i]) }) {
			continue
		}
		locks = append(locks, args[i])
		key := string(args[i])
		beside = append(beside, []byte(protocol.GuardKey(key)), []byte(protocol.SidecarKey(key)), []byte(protocol.QueueKey(key)))
		numbers = strconv.AppendInt(append(numbers, '.'), int64(len(named)), 10)
	}
	o := &t.sidecar.opts
	packed := fmt.Sprintf("%s %d %d %s %s", t.sidecar.owner(), wall.UnixMilli(), o.Lease.Milliseconds(), mode, numbers)
	if database != "" {
		packed += " " + database
	}
	return body, slices.Concat([][]byte{strconv.AppendInt(nil, int64(len(beside)+len(named)), 10)}, named, beside, words, [][]byte{[]byte(packed)}), ""
}

// has tells whether one of the words is an option.
func has(words [][]byte, option string) bool {
	return slices.ContainsFunc(words, func(w []byte) bool { return strings.EqualFold(string(w), option) })
}

// checkText counts a text that is no time of the listener's dialect. Its lock has no lease of the service's then, so a wrong dialect must
// not go unnoticed. The first is logged, with the dialects that have such texts.
func (t *translator) checkText(client, key, text string) {
	if t.dialect == nil || text == "" || text == t.dialect.Forever {
		return
	}
	if _, ok := t.dialect.Written(text); ok {
		return
	}
	t.sidecar.counts.unread.Add(1)
	if t.unread.Swap(true) {
		return
	}
	others := []string{}
	for _, d := range protocol.Dialects() {
		if _, ok := d.Written(text); ok {
			others = append(others, d.Name)
		}
	}
	t.sidecar.opts.Log.Warn("this text is no time of the dialect: its lock has no lease, and is renewed while the service is connected; "+
		"start the sidecar with the --dialect of the service", "client", client, "key", key, "text", text, "dialect", t.dialect.Name, "fits", cmp.Or(strings.Join(others, ","), DialectNone))
}

func (s *Sidecar) token(o *order) string { return s.source.BridgeValue(o.fleet) }

func lowest(a, b stages.Stage) stages.Stage {
	if a < 0 {
		return b
	}
	return min(a, b)
}
