package sidecar

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// across rewrites a command on a lock's key. It does not where the command is to be translated as at stage modern.
func (t *translator) across(c *proxy.Client, here *place, name string, known command, args [][]byte, o *order, now time.Time, out []byte) (verdict proxy.Verdict, with []byte, done bool) {
	s, named := t.sidecar, known.keys.In(args)
	at := slices.DeleteFunc(slices.Clone(named), func(i int) bool { return !t.Covers(args[i]) })
	home := map[stages.Stage]bool{stages.Old: s.opts.DataOld, stages.New: !s.opts.DataOld}[o.Stage]
	for _, i := range at {
		home = home && !s.keys.elsewhere(string(args[i]), stages.Number(o.Stage), now)
	}
	x := &exchange{translator: t, o: o, rules: o.rules(t), name: name, args: args, at: at, key: string(args[at[0]]), known: known}
	if home && (name == "WATCH" || here.multi) {
		here.under(o, at, args)
	}
	why, fresh := "", true // fresh: the order has not changed
	switch {
	case known.mode == translated && len(args) != known.least: // too many words
		return proxy.Pass, out, true
	case home && known.mode == reads:
		return proxy.Pass, out, true
	case home && o.Stage == stages.New && x.takes():
		return proxy.Pass, out, false // it is noted when it is translated
	case home && (o.Stage == stages.New || known.mode == others):
		if fresh = s.keys.begin(x, now); fresh {
			return proxy.Pass, out, known.mode == others
		}
	case home && o.Lives() && !c.Uncounted:
		if fresh = t.note(o, name, args, now); fresh {
			c.Bound = o.Until
			return proxy.Pass, out, true
		}
	case c.Uncounted:
		why = "on a connection that has subscribed, or that wants no replies: send it over another one"
	case here.database != s.opts.Database:
		why = "in another database than the one that --redis names: its locks are there"
	case here.multi:
		why = fmt.Sprintf("in a transaction: at stage %v the lock, or something of it, is not where the other keys are; send it outside of MULTI", o.Stage)
	case name == "WATCH":
		why = fmt.Sprintf("on a lock: at stage %v it is not where the other keys are", o.Stage)
	case !c.Alone:
		return proxy.Apart, out, true
	case len(at) < len(named):
		why = fmt.Sprintf("on keys of which some are locks: at stage %v these are not where the others are; send one command for each", o.Stage)
	default:
		fresh = s.keys.begin(x, now)
	}
	switch {
	case !fresh:
		verdict, with = t.Rewrite(c, args, out)
		return verdict, with, true
	case why != "":
		verdict, with = t.refuse(c, name, args, why, out)
		return verdict, with, true
	}
	lives := o.Lives()
	if !lives {
		s.counts.late.Add(1)
	}
	s.counts.translated(name).Add(1)
	one := s.stripe(x.key)
	one.Lock()
	reply := x.run()
	one.Unlock()
	s.keys.of(x.key, func(w *watched) { w.next = time.Now() }) // it is looked at soon
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
