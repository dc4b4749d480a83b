package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// onServer are the verbs about servers, the record and time.
var onServer = map[string]func(p *play, ctx context.Context, args []string) (string, error){
	"sleep": func(_ *play, ctx context.Context, args []string) (string, error) {
		d, err := time.ParseDuration(args[0])
		return "ok", errors.Join(err, lifetime.Sleep(ctx, d))
	},
	"redis": func(p *play, ctx context.Context, args []string) (string, error) { return p.redis(ctx, args) },
	"far": func(p *play, ctx context.Context, args []string) (string, error) { // the value on a key is a bridge value of the dialect
		value, err := p.redis(ctx, []string{"GET", args[0]})
		d, known := protocol.DialectNamed(p.record.Dialect)
		if known != nil || err != nil {
			return "", errors.Join(known, err)
		}
		if _, far := d.BridgeNumber(value); far && d.JudgeAsOldCode(value, protocol.InstantOf(time.Now().Add(24*365*100*time.Hour)), "") == protocol.Live {
			return "ok", nil
		}
		return "no: " + value, nil
	},
	"ends": func(p *play, ctx context.Context, args []string) (string, error) { // in how many milliseconds the old expiry on a key is over
		value, err := p.redis(ctx, []string{"GET", args[0]})
		d, known := protocol.DialectNamed(p.record.Dialect)
		if known != nil || err != nil {
			return "", errors.Join(known, err)
		}
		at, ok := d.ExpiresAt(value)
		if !ok {
			return "no expiry: " + value, nil
		}
		return strconv.FormatInt(at.Time().Sub(time.Now().Add(p.offset)).Milliseconds(), 10), nil
	},
	"empty": func(p *play, ctx context.Context, _ []string) (string, error) { // the server is killed, and one with nothing takes its address
		s, err := p.start(ctx)
		if err != nil {
			return "", err
		}
		p.replace(s)
		return "ok", nil
	},
	"promote": func(p *play, ctx context.Context, _ []string) (string, error) { // the replica takes the master's address
		replica := p.servers[1]
		if _, err := replica.do(ctx, "SLAVEOF", "NO", "ONE"); err != nil {
			return "", err
		}
		p.servers = p.servers[:1]
		p.replace(replica)
		return "ok", nil
	},
	"synced": func(p *play, ctx context.Context, _ []string) (string, error) { // the replica has what was written until now
		conn, err := redis.DialContext(ctx, "tcp", p.servers[0].addr)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		_, err = conn.Do("SET", "conformance:synced", 1)
		n, e := redis.Int(conn.Do("WAIT", 1, 1000))
		return strconv.Itoa(n), errors.Join(err, e)
	},
	"clock": func(p *play, _ context.Context, args []string) (string, error) {
		d, err := time.ParseDuration(args[0])
		p.setClock(d)
		return "ok", err
	},
	"replica": func(p *play, ctx context.Context, _ []string) (string, error) {
		replica, err := p.start(ctx, "--slaveof", "127.0.0.1", strings.TrimPrefix(p.servers[0].addr, "127.0.0.1:"))
		if err == nil {
			p.servers = append(p.servers, replica)
		}
		return "ok", err
	},
	"stage": func(p *play, ctx context.Context, args []string) (string, error) { // the operator moves the record
		to, err := stages.Parse(args[0])
		if err != nil {
			return "", err
		}
		within, _ := time.ParseDuration(options(args)["within"])
		bounded, cancel := context.WithTimeout(ctx, max(within, time.Millisecond))
		defer cancel()
		blocked := ""
		err = (&stages.Mover{Store: p.store(), Look: 50 * time.Millisecond, Note: "conformance"}).Run(bounded, to, func(_ stages.View, all []stages.Blocker) {
			blocked = ""
			for _, b := range all {
				blocked += "; " + b.String()
			}
		})
		if err != nil && blocked != "" {
			return "blocked", nil
		}
		return outcome(err), nil
	},
	"begin": func(p *play, ctx context.Context, args []string) (string, error) {
		var actors []*actor
		for _, name := range args[1:] {
			actors = append(actors, p.actors[name])
		}
		p.begin(ctx, args[0], actors)
		return "ok", nil
	},
	"halt": func(p *play, ctx context.Context, _ []string) (string, error) {
		return p.load.halt(ctx)
	},
}

// redis runs a command on the server itself.
func (p *play) redis(ctx context.Context, args []string) (string, error) {
	words := make([]any, len(args)-1)
	for i, a := range args[1:] {
		words[i] = a
	}
	reply, err := p.servers[0].do(ctx, args[0], words...)
	var refused redis.Error
	switch v := reply.(type) {
	case []byte:
		return string(v), err
	case nil:
		if errors.As(err, &refused) {
			return "error " + refused.Error(), nil
		}
		return "absent", err
	case []any:
		return fmt.Sprintf("%d entries", len(v)), err
	case string: // a status
		return strings.ToLower(v), err
	default:
		return fmt.Sprint(v), err
	}
}

// replace puts another server in the place of the master, which is killed.
func (p *play) replace(s *server) {
	p.servers[0].kill()
	p.servers[0] = s
	p.operator.Retarget(s.addr)
	for _, a := range p.actors {
		a.link.Retarget(s.addr)
		a.link.Cut()
	}
}

// byActor are the verbs of somebody who locks.
var byActor = map[string]func(p *play, ctx context.Context, a *actor, args []string) (string, error){
	"open": func(p *play, ctx context.Context, a *actor, args []string) (string, error) {
		return p.open(ctx, a, options(args))
	},
	"close": func(_ *play, ctx context.Context, a *actor, _ []string) (string, error) {
		return seen(a.client.close(ctx)), nil
	},
	"acquire": func(p *play, ctx context.Context, a *actor, args []string) (string, error) {
		return p.acquire(ctx, a, args), nil
	},
	"ask": func(p *play, ctx context.Context, a *actor, args []string) (string, error) { // acquire, and go on when the command is on its way
		began := len(a.sentAll())
		go func() { a.answer <- p.acquire(ctx, a, args) }()
		for end := time.Now().Add(time.Second); (a.proc == nil || !a.proc.killed) && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			if slices.ContainsFunc(a.sentAll()[began:], func(c call) bool { return slices.Contains(c.words, args[0]) }) {
				break
			}
		}
		return "ok", nil
	},
	"answer": func(_ *play, ctx context.Context, a *actor, _ []string) (string, error) {
		select {
		case said := <-a.answer:
			return said, nil
		case <-ctx.Done():
			return "no answer", nil
		}
	},
	"release": func(_ *play, ctx context.Context, a *actor, args []string) (string, error) {
		l := a.locks[args[0]]
		if l == nil {
			return "no lock", nil
		}
		delete(a.locks, args[0])
		return seen(l.Release(ctx)), nil
	},
	"check": func(_ *play, ctx context.Context, a *actor, _ []string) (string, error) {
		if a.last != nil && alive(ctx, a.last) {
			return "alive", nil
		}
		return "lost", nil
	},
	"hears": func(_ *play, ctx context.Context, a *actor, args []string) (string, error) { // of a loss, within a time
		d, err := time.ParseDuration(args[0])
		if err != nil || a.last == nil {
			return "no lock", err
		}
		select {
		case <-a.last.Context().Done():
			return "lost", nil
		case <-time.After(d):
			return "nothing", nil
		case <-ctx.Done():
			return "nothing", nil
		}
	},
	"took": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		return strconv.FormatInt(a.took.Milliseconds(), 10), nil
	},
	"holds": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) { // in which way
		if l, ok := a.last.(told); ok {
			return l.Stage().String(), nil
		}
		return "no lock", nil
	},
	"fence": func(p *play, _ context.Context, a *actor, args []string) (string, error) { // beside somebody's
		mine, ok := a.last.(told)
		if !ok {
			return "no lock", nil
		}
		if len(args) == 0 {
			return strconv.FormatInt(mine.Fence(), 10), nil
		}
		other, ok := p.actors[args[0]].last.(told)
		if !ok {
			return "no lock", nil
		}
		return strconv.FormatInt(mine.Fence()-other.Fence(), 10), nil
	},
	"sent": func(_ *play, _ context.Context, a *actor, args []string) (string, error) { // an argument of a script, as it was sent last
		c, ok := a.sent(args[0])
		if !ok {
			return "never sent", nil
		}
		return c.named[args[1]], nil
	},
	"bound": func(p *play, _ context.Context, a *actor, args []string) (string, error) { // of the command that was sent last, in ms from then
		c, ok := a.sent(args[0])
		if !ok {
			return "never sent", nil
		}
		n, _ := strconv.ParseInt(c.named["not_after"], 10, 64)
		if n == 0 {
			return "none", nil
		}
		return strconv.FormatInt(n-c.at.Add(p.offset).UnixMilli(), 10), nil
	},
	"strange": func(_ *play, _ context.Context, a *actor, args []string) (string, error) { // scripts that are not of the protocol; other commands that name a key
		for _, c := range a.sentAll() {
			if c.name == "" {
				return fmt.Sprintf("a script of its own: %.60s", c.words[1]), nil
			}
			if c.named == nil && len(c.words) > 1 && slices.Contains(args, c.words[1]) && !slices.Contains([]string{"GET", "PTTL", "WATCH", "TYPE"}, c.name) {
				return strings.Join(c.words, " "), nil
			}
		}
		return "nothing", nil
	},
	"member": func(p *play, ctx context.Context, a *actor, _ []string) (string, error) { // what `lockmigrate stage` says of it
		view, err := p.store().Show(ctx)
		if err != nil {
			return "", err
		}
		said := "not listed"
		for _, m := range view.Members {
			switch {
			case !strings.HasPrefix(m.ID, a.name):
			case m.Misfit != "":
				said = "misfit: " + m.Misfit
			case !m.Lives():
				said = "silent"
			case !m.Follows(view.Record):
				said = "behind"
			default:
				return m.Stage.String(), nil
			}
		}
		return said, nil
	},
	"kill": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		a.proc.kill()
		return "ok", nil
	},
	"stop": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		a.proc.killed = true // so that nobody uses it again
		return "ok", signal(a.proc.cmd, sigStop)
	},
	"cont": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		return "ok", signal(a.proc.cmd, sigCont)
	},
	"lose": func(_ *play, _ context.Context, a *actor, args []string) (string, error) { // the next command of a name runs, and its reply is lost
		a.onNext(args[0], func() {
			a.link.HalfOpen()
			time.AfterFunc(replyTimeout*3/2, a.link.Heal) // the second sending has its answer
		})
		return "ok", nil
	},
	"late": func(_ *play, _ context.Context, a *actor, args []string) (string, error) { // the next command of a name, and what follows it, comes late
		d, err := time.ParseDuration(args[1])
		a.onNext(args[0], func() {
			a.link.Partition()
			time.AfterFunc(d, a.link.Heal)
		})
		return "ok", err
	},
	"cut": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		a.link.Partition()
		return "ok", nil
	},
	"heal": func(_ *play, _ context.Context, a *actor, _ []string) (string, error) {
		a.link.Heal()
		return "ok", nil
	},
	"after": func(p *play, ctx context.Context, a *actor, args []string) (string, error) { // so long after the next command of a name, another client does this
		d, err := time.ParseDuration(args[1])
		a.onNext(args[0], func() { time.AfterFunc(d, func() { _, _ = p.redis(ctx, args[2:]) }) })
		return "ok", err
	},
	"rest": func(p *play, ctx context.Context, a *actor, _ []string) (string, error) {
		return "ok", p.load.rest(ctx, a)
	},
	"back": func(p *play, ctx context.Context, a *actor, _ []string) (string, error) {
		p.load.start(ctx, a)
		return "ok", nil
	},
	"turned": func(p *play, _ context.Context, a *actor, _ []string) (string, error) { // so often, under load
		turns := 0
		names, records, _ := p.load.referee.Records()
		for i, name := range names {
			if name == a.name {
				turns += records[i].Turns
			}
		}
		return strconv.Itoa(turns), nil
	},
}

func (a *actor) sentAll() []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

func (p *play) acquire(ctx context.Context, a *actor, args []string) string {
	wait, _ := time.ParseDuration(options(args)["wait"])
	began := time.Now()
	lock, err := a.client.acquire(ctx, args[0], wait)
	a.took = time.Since(began)
	if err == nil {
		a.locks[args[0]], a.last = lock, lock
	}
	return seen(err)
}
