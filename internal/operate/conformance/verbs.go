package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/link"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// do does what a line says about servers, the record and time, and returns what came of it. An error is for what cannot be judged.
func (p *play) do(ctx context.Context, verb string, args []string) (seen string, err error) {
	seen, args = "ok", append(args, "", "") // a line may say less
	d, _ := time.ParseDuration(args[0])
	switch verb {
	case "sleep":
		err = lifetime.Sleep(ctx, d)
	case "redis":
		return p.redis(ctx, args[:len(args)-2])
	case "far": // the value on a key is a bridge value of the dialect
		seen, err = p.redis(ctx, []string{"GET", args[0]})
		_, far := p.dialect().BridgeNumber(seen)
		if far && p.dialect().JudgeAsOldCode(seen, protocol.InstantOf(time.Now().Add(24*365*100*time.Hour)), "") == protocol.Live {
			return "ok", err
		}
		return "no: " + seen, err
	case "ends": // in how many milliseconds the old expiry on a key is over
		seen, err = p.redis(ctx, []string{"GET", args[0]})
		at, ok := p.dialect().ExpiresAt(seen)
		if !ok {
			return "no expiry: " + seen, err
		}
		return milliseconds(at.Time().Sub(p.now())), err
	case "empty": // the server is killed, and one with nothing takes its address
		s, err := p.start(ctx)
		if err == nil {
			p.replace(s)
		}
		return seen, err
	case "replica":
		s, err := p.start(ctx, "--slaveof", "127.0.0.1", strings.TrimPrefix(p.operator.Addr, "127.0.0.1:"))
		if err == nil {
			p.servers = append(p.servers, s)
		}
		return seen, err
	case "synced": // the replica has what was written until now
		conn, err := p.servers[0].dial(ctx)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		_, err = conn.Do("SET", "conformance:synced", 1)
		n, e := redis.Int(conn.Do("WAIT", 1, 1000))
		return strconv.Itoa(n), errors.Join(err, e)
	case "promote": // the replica takes the master's address
		s := p.servers[1]
		p.servers = p.servers[:1]
		_, err = s.do(ctx, "SLAVEOF", "NO", "ONE")
		p.replace(s)
	case "clock":
		p.setClock(d)
	case "record":
		err = p.initRecord(ctx, args)
	case "stage": // the operator moves the record
		return p.move(ctx, args)
	case "begin":
		p.begin(ctx, args[0], args[1:len(args)-2])
	case "halt":
		return p.load.halt(ctx)
	default:
		return p.act(ctx, verb, args[0], args[1:])
	}
	return seen, err
}

// act does what a line says of somebody who locks.
func (p *play) act(ctx context.Context, verb, who string, args []string) (seen string, err error) {
	a := p.actors[who]
	if a == nil && verb == "open" {
		a = &actor{name: who, locks: map[string]fleet.Held{}, answer: make(chan string, 1)}
		if a.link, err = link.Start(p.servers[0].socket, true); err != nil {
			return "", err
		}
		a.link.Before(a.note)
		a.link.Rewrite(p.rewrite)
		p.actors[who] = a
	}
	if a == nil {
		return "", fmt.Errorf("%w: the case has no sense: %s %s", errNotTried, verb, who)
	}
	d, _ := time.ParseDuration(args[0])
	seen = "ok"
	switch verb {
	case "open":
		return p.open(ctx, a, options(args))
	case "close":
		return word(a.client.close(ctx)), nil
	case "acquire":
		return a.acquire(ctx, args), nil
	case "ask": // acquire, and go on when the command is on its way
		began := len(a.sent())
		go func() { a.answer <- a.acquire(ctx, args) }()
		for end := time.Now().Add(time.Second); (a.proc == nil || !a.proc.killed) && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
			if slices.ContainsFunc(a.sent()[began:], func(c call) bool { return slices.Contains(c.words, args[0]) }) {
				break
			}
		}
	case "answer":
		select {
		case seen = <-a.answer:
		case <-ctx.Done():
			seen = "no answer"
		}
	case "release":
		if a.locks[args[0]] == nil {
			return "no lock", nil
		}
		return word(a.locks[args[0]].Release(ctx)), nil
	case "check":
		if seen = "lost"; a.last != nil && alive(ctx, a.last) {
			seen = "alive"
		}
	case "hears": // of a loss, within a time
		bounded, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		if a.last == nil {
			return "no lock", nil
		}
		select {
		case <-a.last.Context().Done():
			return "lost", nil
		case <-bounded.Done():
			return "nothing", nil
		}
	case "took":
		return milliseconds(a.took), nil
	case "holds": // in which way
		if l, ok := a.last.(told); ok {
			return l.Stage().String(), nil
		}
		return "no lock", nil
	case "fence": // beside somebody's
		mine, ok := a.last.(told)
		if !ok {
			return "no lock", nil
		}
		n := mine.Fence()
		if b := p.actors[args[0]]; b != nil {
			if other, ok := b.last.(told); ok {
				n -= other.Fence()
			}
		}
		return strconv.FormatInt(n, 10), nil
	case "sent", "bound": // an argument of a script, as it was sent last; the bound in milliseconds from then
		for _, c := range slices.Backward(a.sent()) {
			n, _ := strconv.ParseInt(c.named["not_after"], 10, 64)
			switch {
			case c.name != args[0]:
			case verb == "sent":
				return c.named[args[1]], nil
			case n == 0:
				return "none", nil
			default:
				return milliseconds(time.UnixMilli(n).Sub(c.at.Add(p.offset))), nil
			}
		}
		return "never sent", nil
	case "times": // how often a script was sent
		return strconv.Itoa(len(slices.DeleteFunc(a.sent(), func(c call) bool { return c.name != args[0] }))), nil
	case "strange": // scripts that are not of the protocol; other commands that name a key
		for _, c := range a.sent() {
			if c.name == "" {
				return fmt.Sprintf("a script of its own: %.60s", c.words[1]), nil
			}
			if c.named == nil && len(c.words) > 1 && slices.Contains(args, c.words[1]) && !slices.Contains([]string{"GET", "PTTL", "WATCH", "TYPE"}, c.name) {
				return strings.Join(c.words, " "), nil
			}
		}
		return "nothing", nil
	case "member": // what `lockmigrate stage` says of it
		return p.member(ctx, who)
	case "kill":
		a.proc.kill()
	case "stop":
		a.proc.killed = true // so that nobody uses it again
		err = signal(a.proc.cmd, sigStop)
	case "cont":
		err = signal(a.proc.cmd, sigCont)
	case "lose": // the next command of a name runs, and its reply is lost; the second sending has its answer
		a.onNext(args[0], func() { a.link.HalfOpen(); time.AfterFunc(replyTimeout*3/2, a.link.Heal) })
	case "late": // the next command of a name, and what follows it, comes late
		d, err = time.ParseDuration(args[1])
		a.onNext(args[0], func() { a.link.Partition(); time.AfterFunc(d, a.link.Heal) })
	case "after": // so long after the next command of a name, another client does this
		d, err = time.ParseDuration(args[1])
		a.onNext(args[0], func() { time.AfterFunc(d, func() { _, _ = p.redis(ctx, args[2:len(args)-2]) }) })
	case "cut":
		a.link.Partition()
	case "heal":
		a.link.Heal()
	case "rest":
		err = p.load.rest(ctx, a)
	case "back":
		p.load.start(ctx, a)
	case "turned": // so often, under load
		return strconv.Itoa(p.load.referee.Turns(who)), nil
	default:
		return "", fmt.Errorf("%w: the case has no sense: %s", errNotTried, verb)
	}
	return seen, err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// now is the server's clock.
func (p *play) now() time.Time { return time.Now().Add(p.offset) }

// dialect is the record's.
func (p *play) dialect() *protocol.Dialect {
	d, _ := protocol.DialectNamed(p.record.Dialect) // initRecord has found it
	return d
}

// options are the words name=value of a line.
func options(args []string) map[string]string {
	named := map[string]string{}
	for _, a := range args {
		if name, value, ok := strings.Cut(a, "="); ok {
			named[name] = value
		}
	}
	return named
}

// redis runs a command on the server itself.
func (p *play) redis(ctx context.Context, args []string) (string, error) {
	reply, err := p.servers[0].do(ctx, args[0], redis.Args{}.AddFlat(args[1:])...)
	switch v := reply.(type) {
	case []byte:
		return string(v), err
	case nil:
		return "absent", err
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
	links := []*link.Link{p.operator}
	for _, a := range p.actors {
		links = append(links, a.link)
	}
	for _, l := range links {
		l.Retarget(s.socket)
		l.Cut()
	}
}

// initRecord makes the namespace.
func (p *play) initRecord(ctx context.Context, args []string) (err error) {
	named := options(args[1:])
	p.record = stages.Record{
		Namespace: namespace, Dialect: cmp.Or(named["dialect"], "jedis-ms"), Shortest: 2 * time.Second, ClockLag: 150 * time.Millisecond,
		CommandDelay: 150 * time.Millisecond, Yield: 50 * time.Millisecond, Patterns: []string{namespace + ":*"},
	}
	if named["lag"] != "" {
		p.record.ClockLag, err = time.ParseDuration(named["lag"])
	}
	_, known := protocol.DialectNamed(p.record.Dialect)
	var stage error
	p.record.Stage, stage = stages.Parse(args[0])
	if err = errors.Join(err, known, stage); err == nil {
		err = p.store.Init(ctx, p.record)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotTried, err)
	}
	return nil
}

// dials makes connections through a link.
func dials(l *link.Link) *redis.Pool {
	return &redis.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", l.Addr) }}
}

// move moves the record to a stage.
func (p *play) move(ctx context.Context, args []string) (string, error) {
	to, err := stages.Parse(args[0])
	within, e := time.ParseDuration(options(args)["within"])
	if err = errors.Join(err, e); err != nil {
		return "", err
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	blocked := false
	err = (&stages.Mover{Store: p.store, Look: 50 * time.Millisecond, Note: "conformance"}).Run(bounded, to, func(stages.View, []stages.Blocker) { blocked = true })
	switch {
	case err == nil:
		return "ok", nil
	case blocked:
		return "blocked", nil
	}
	return err.Error(), nil
}

// member is what the record says of a member.
func (p *play) member(ctx context.Context, name string) (seen string, err error) {
	view, err := p.store.Show(ctx)
	seen = "not listed"
	for _, m := range view.Members {
		switch {
		case !strings.HasPrefix(m.ID, name):
		case m.Misfit != "":
			seen = "misfit: " + m.Misfit
		case !m.Lives():
			seen = "silent"
		case !m.Follows(view.Record):
			seen = "behind"
		default:
			return m.Stage.String(), nil
		}
	}
	return seen, err
}
