package sidecar

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
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

// commands are those that can touch a lock, or that change the database in which a client is. One with a why is refused on a lock's key in stages bridge and modern.
var commands = map[string]struct {
	keys proxy.Keys
	why  string
}{
	"SELECT": {}, "RESET": {}, "MULTI": {}, "EXEC": {}, "DISCARD": {},
	"SETNX": {keys: first}, "SET": {keys: first}, "GET": {keys: first}, "GETSET": {keys: first},
	"DEL": {keys: proxy.Keys{First: 1, Last: -1, Step: 1}}, "UNLINK": {keys: proxy.Keys{First: 1, Last: -1, Step: 1}},
	"EXPIRE": {keys: first}, "PEXPIRE": {keys: first}, "EXPIREAT": {keys: first}, "PEXPIREAT": {keys: first},
	"EVAL": {keys: proxy.Keys{First: 3, Step: 1, Counted: true}}, "EVALSHA": {keys: proxy.Keys{First: 3, Step: 1, Counted: true}}, "FCALL": {keys: proxy.Keys{First: 3, Step: 1, Counted: true}},
	"SETEX": {first, overwrites}, "PSETEX": {first, overwrites}, "APPEND": {first, overwrites}, "SETRANGE": {first, overwrites}, "SETBIT": {first, overwrites},
	"INCR": {first, overwrites}, "INCRBY": {first, overwrites}, "INCRBYFLOAT": {first, overwrites}, "DECR": {first, overwrites}, "DECRBY": {first, overwrites},
	"MSET": {proxy.Keys{First: 1, Last: -1, Step: 2}, overwrites}, "MSETNX": {proxy.Keys{First: 1, Last: -1, Step: 2}, "takes several locks at once; use SETNX for each"},
	"GETDEL": {first, "deletes what may be another's lock; use DEL"}, "GETEX": {first, "changes what may be another's lock; use GET and EXPIRE"},
	"BITOP": {proxy.Keys{First: 2, Last: 2, Step: 1}, overwrites}, "BITFIELD": {first, overwrites}, "PFADD": {first, overwrites}, "PFMERGE": {first, overwrites},
	"SINTERSTORE": {first, overwrites}, "SUNIONSTORE": {first, overwrites}, "SDIFFSTORE": {first, overwrites}, "ZINTERSTORE": {first, overwrites},
	"ZUNIONSTORE": {first, overwrites}, "ZDIFFSTORE": {first, overwrites}, "ZRANGESTORE": {first, overwrites}, "GEOSEARCHSTORE": {first, overwrites},
	"SORT": {anywhere, overwrites}, "GEORADIUS": {anywhere, overwrites}, "GEORADIUSBYMEMBER": {anywhere, overwrites}, "MSETEX": {anywhere, overwrites},
	"MIGRATE": {anywhere, "moves a lock to another server"}, "DELEX": {first, "deletes what may be another's lock; use DEL"}, "DELIFEQ": {first, "compares a lock's token; use DEL"},
	"PERSIST": {first, "makes a lock without an end"}, "RESTORE": {first, overwrites}, "COPY": {proxy.Keys{First: 1, Last: 2, Step: 1}, overwrites},
	"RENAME": {proxy.Keys{First: 1, Last: 2, Step: 1}, "moves a lock to another key"}, "RENAMENX": {proxy.Keys{First: 1, Last: 2, Step: 1}, "moves a lock to another key"}, "MOVE": {first, "moves a lock to another database"},
}

const overwrites = "overwrites what may be another's lock; take it with SETNX or SET NX"

// Commands implements proxy.Rewriter.
func (t *translator) Commands() map[string]proxy.Keys {
	all := map[string]proxy.Keys{}
	for name, c := range commands {
		all[name] = c.keys
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
	rules, at := o.rules(t), time.Now()
	wall := s.opts.Clock()
	now := protocol.InstantOf(wall)
	name := strings.ToUpper(string(args[0]))
	here := c.Data.(*place)
	if known := commands[name]; known.keys == (proxy.Keys{}) {
		here.moves(name, args, s.opts.Database)
		c.Multi = here.multi
		return proxy.Pass, out
	}
	refuse := func(why string) (proxy.Verdict, []byte) {
		if rules.Legacy && o.ready && at.Before(o.until) {
			return proxy.Pass, out
		}
		s.counts.refused.Add(1)
		s.opts.Log.Warn("refused", "client", c.Addr, "command", name, "key", string(args[1]), "why", why)
		return proxy.Refuse, append(out, "ERR lockmigrate sidecar: "+name+" "+why...)
	}
	if why := commands[name].why; why != "" {
		return refuse(why)
	}
	if here.database != s.opts.Database && !commands[name].keys.Counted {
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
	var command protocol.Command
	key := ""
	if len(args) > 1 {
		key = string(args[1])
	}
	takes, ok := false, true
	switch {
	case name == "GET" && len(args) == 2:
		command = rules.Get(now, key)
	case name == "SETNX" && len(args) == 3:
		command, takes = rules.SetNX(now, key, string(args[2]), s.token(o), protocol.FormSetNX), true
	case name == "GETSET" && len(args) == 3:
		command, takes = rules.GetSet(now, key, string(args[2]), s.token(o)), true
	case name == "SET" && len(args) > 2:
		if command, ok = t.set(&rules, now, key, args[2:], o); !ok {
			return refuse(overwrites)
		}
		takes = command.Op != protocol.SidecarGet
	case name == "DEL" || name == "UNLINK":
		if len(args) > 2 {
			return refuse("of several keys, one of them a lock's; send one for each")
		}
		command = rules.Del(now, key)
		s.keys.given(s, key)
	case strings.Contains(name, "EXPIRE"):
		ttl, fine := lifetime(name, args, wall)
		if !fine {
			if len(args) < 3 || !number(args[2]) {
				return proxy.Pass, out // the server says what is wrong with it
			}
			return refuse("with options, or for more than a century, on a lock's key")
		}
		command = rules.Expire(now, key, ttl)
	default:
		if commands[name].keys.Counted {
			s.counts.scripts.Add(1)
		}
		return proxy.Pass, out
	}
	command.NotAfter = o.notAfter
	switch over := command.Op == protocol.SidecarTake && command.TTL == 0; {
	case over: // nothing is taken, so it waits for nothing
		s.counts.over.Add(1)
		s.opts.Log.Warn("the expiry is over by this host's clock: not taken", "client", c.Addr, "key", key, "value", command.Sidecar.Text)
	case takes:
		switch waits, stale := s.keys.wait(s, o, &rules, c, &command, here.multi, at); {
		case stale:
			return t.Rewrite(c, args, out)
		case waits:
			return proxy.Hold, out
		}
		t.checkText(c.Addr, key, command.Sidecar.Text)
	}
	s.counts.translated(name).Add(1)
	database := ""
	if s.opts.Database != 0 || here.strays {
		database = strconv.Itoa(s.opts.Database)
	}
	return proxy.Replace, appendRequest(out, c, command, database)
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

// set reads SET with its options: value, options...
func (t *translator) set(rules *protocol.Sidecar, now protocol.Instant, key string, args [][]byte, o *order) (protocol.Command, bool) {
	text, nx, get, ttl := string(args[0]), false, false, time.Duration(-1)
	for i := 1; i < len(args); i++ {
		switch option := strings.ToUpper(string(args[i])); option {
		case "NX":
			nx = true
		case "GET":
			get = true
		case "PX", "EX", "PXAT", "EXAT":
			if i++; i == len(args) || ttl >= 0 {
				return protocol.Command{}, false
			}
			var fine bool
			if ttl, fine = span(option[0] == 'P', strings.HasSuffix(option, "AT"), args[i], now.Time()); !fine || ttl < time.Millisecond {
				return protocol.Command{}, false
			}
		default:
			return protocol.Command{}, false
		}
	}
	switch {
	case nx && !get && ttl > 0:
		return rules.SetNXPX(now, key, text, ttl), true
	case nx && !get:
		return rules.SetNX(now, key, text, t.sidecar.token(o), protocol.FormSet), true
	case get && !nx && ttl < 0:
		return rules.GetSet(now, key, text, t.sidecar.token(o)), true
	case !get && !nx && ttl < 0:
		return rules.Set(now, key, text)
	}
	return protocol.Command{}, false
}

// lifetime is what a command of the EXPIRE family sets.
func lifetime(name string, args [][]byte, now time.Time) (time.Duration, bool) {
	if len(args) != 3 {
		return 0, false
	}
	return span(name[0] == 'P', strings.HasSuffix(name, "AT"), args[2], now)
}

// span reads a number of seconds or milliseconds, from now or since the epoch.
func span(milli, absolute bool, text []byte, now time.Time) (time.Duration, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64) // takes all that a server takes
	unit := time.Second
	if milli {
		unit = time.Millisecond
	}
	if most := int64(protocol.Century / unit); err != nil || n > most {
		return 0, false
	}
	if absolute {
		return time.UnixMilli(n * int64(unit/time.Millisecond)).Sub(now).Truncate(time.Millisecond), true
	}
	return time.Duration(max(n, 0)) * unit, true
}

func number(text []byte) bool {
	_, err := strconv.ParseInt(string(text), 10, 64)
	return err == nil
}

func lowest(a, b stages.Stage) stages.Stage {
	if a < 0 {
		return b
	}
	return min(a, b)
}
