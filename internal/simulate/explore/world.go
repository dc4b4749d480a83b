package explore

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// The claims are written in ticks of this length: longer than the unit of the values, so that the one
// unit that writers add to an expiry makes a lease of n ticks end before tick n+1.
const standardTick = 10 * time.Millisecond

const key = "k"

func ticks(n Ticks) time.Duration { return time.Duration(n) * standardTick }

// owner is a UUID for dialects that want one.
func owner(name string) string { return "0000000" + name[:1] + "-0000-4000-8000-000000000000" }

// world reads a model: its horizon and what it allows, then one client a line. The horizon leaves everybody time for a turn.
//
//	ticks=12 left-behind=2 only=legacy+bridge
//	a legacy early=1 getset-late=1
//	x bridge grace=1 settle=2 renew=1 -> grace=2
//
// All numbers are ticks, or counts. Behind the arrow stands what the record's correction changes about a member. The words are the names of the
// fields of Model, Client and model.Member, and those of a scenario where it has them. The text is part of the program: what cannot be
// read is a panic.
func world(text string) *Model {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	m := &Model{Tick: standardTick}
	for _, line := range lines[1:] {
		m.Clients = append(m.Clients, clientOf(strings.Fields(line)))
	}
	fields := m.fields()
	for word := range strings.FieldsSeq(lines[0]) {
		name, value, _ := strings.Cut(word, "=")
		assign(value, fields[name])
	}
	return m
}

// assign reads one value into what a field is. The claims are part of the program: a word that does not fit is a fault of claims.txt, and panics in
// the first test that reads it.
func assign(value string, to any) {
	number := func() Ticks {
		if value == "unbounded" {
			return Unbounded
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			panic(err)
		}
		return n
	}
	switch to := to.(type) {
	case *bool:
		*to = true
	case *Ticks:
		*to = number()
	case *time.Duration:
		*to = ticks(number())
	case *string:
		*to = value
	case *model.Scheme:
		*to = schemeOf(value)
	case func():
		to()
	case func(Ticks):
		to(number())
	case func(string):
		to(value)
	default:
		panic("explore: claims.txt: no field takes " + value)
	}
}

func schemeOf(name string) model.Scheme {
	scheme, known := model.SchemeNamed(name)
	if !known {
		panic("explore: claims.txt: no scheme is named " + name)
	}
	return scheme
}

func stageOf(name string) uint8 { return uint8(slices.Index(stageNames[:], name)) }

// fields are what a world may allow, by name. Those of a record or a handover stand behind the word that makes it one.
func (m *Model) fields() map[string]any {
	p := &m.Property
	return map[string]any{
		"ticks": &m.Horizon, "silences": &m.Silences, "failovers": &m.Failovers, "messages": &m.Messages, "no-stats": &m.NoStats, "at-once": &m.AtOnce,
		"overheard": func() { m.Messages, m.Overheard = true, true },
		// It opens with the value of a holder that crashed: its lease was over so many ticks ago.
		"left-behind": func(n Ticks) {
			c := &m.Clients[0]
			value, _ := c.Dialect.Expiry(Epoch.Add(-time.Duration(n)*m.Tick-c.Lease), c.Lease, owner("f"))
			m.Opening = []model.Entry{{Key: key, Value: value}}
		},
		"in-unit": m.inUnit,

		"only": func(pair string) {
			a, b, _ := strings.Cut(pair, "+")
			p.Pairs = append(p.Pairs, Pair{schemeOf(a), schemeOf(b)})
		},
		"among": func(schemes string) {
			all := strings.Split(schemes, ",")
			for _, a := range all {
				for _, b := range all {
					p.Pairs = append(p.Pairs, Pair{schemeOf(a), schemeOf(b)})
				}
			}
		},
		"tolerate": &p.Tolerate, "intruder": &p.Intruder, "fencing": &p.Fencing, "gone": &p.Gone, "idle": &p.Idle,

		"record": func(n Ticks) { m.Record = &Record{Lease: n} },
		"alone":  func() { m.Record.Alone = true },
		"handover": func(stages string) {
			first, last, _ := strings.Cut(stages, "..")
			m.Handover = &Handover{Start: stageOf(first), First: stageOf(first), Last: stageOf(last)}
		},
		"start":   func(name string) { m.Handover.Start = stageOf(name) },
		"moves":   func(n Ticks) { m.Handover.Moves = n },
		"lease":   func(n Ticks) { m.Handover.Lease = n },
		"mirrors": func() { m.Handover.Mirrors = true },
	}
}

// inUnit stretches the ticks to ten of the first dialect's units, where those are longer.
func (m *Model) inUnit() {
	if d := m.Clients[0].Dialect; d.Unit == protocol.Seconds || d.Unit == protocol.FloatSeconds {
		m.stretch(1000)
	}
}

func (m *Model) stretch(n time.Duration) {
	m.Tick *= n
	for i := range m.Clients {
		c := &m.Clients[i]
		c.Lease, c.Poll, c.Renew, c.Grace, c.Settle = c.Lease*n, c.Poll*n, c.Renew*n, c.Grace*n, c.Settle*n
		if to := c.Corrected; to != nil {
			to.Lease, to.Poll, to.Renew, to.Grace, to.Settle = to.Lease*n, to.Poll*n, to.Renew*n, to.Grace*n, to.Settle*n
		}
	}
}

// clientOf reads: NAME SCHEME options [-> options]. Scheme handover is a member of a handover: its Old is a token lock, or what
// old= says, and its New a token lock on another key.
func clientOf(words []string) Client {
	c := Client{
		Kind: words[1],
		Member: model.Member{
			Name: words[0], Dialect: protocol.JedisMS, Key: key, Owner: owner(words[0]),
			Lease: ticks(3), Poll: ticks(1), Patience: time.Hour,
		},
		Turns: 1, DelayOf: map[protocol.Op]Ticks{},
	}
	switch words[1] {
	case "handover":
		to := c.Member
		to.Scheme, to.Key = model.Modern, "n"
		c.Scheme, c.Patience, c.New = model.Modern, 0, &to // it gives up after one attempt
	case "sidecar":
		c.Scheme, c.Behind = model.Sidecar, "s"+c.Name
	default:
		c.Scheme = schemeOf(words[1])
	}
	fields := c.fields()
	for _, word := range words[2:] {
		if word == "->" {
			to := c
			c.Corrected, fields = &to.Member, to.fields()
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		assign(value, fields[name])
	}
	if c.New != nil {
		c.New.Lease, c.New.Patience = c.Lease, c.Patience
		if c.Ignores {
			c.New.Lease *= 2
		}
	}
	return c
}

// fields are the options of a client, by name.
func (c *Client) fields() map[string]any {
	late := func(op protocol.Op) func(Ticks) {
		return func(n Ticks) { c.DelayOf[op] = n }
	}
	return map[string]any{
		"turns": &c.Turns, "from": &c.From, "ahead": &c.Ahead, "step-by": &c.StepBy,
		"delay": &c.Delay, "reply-late": &c.ReplyLate, "overrun": &c.Overrun, "early": func(n Ticks) { c.Overrun = -n },
		"getset-late": late(protocol.GetSet), "compare-set-late": late(protocol.CompareSet),
		"extend-late": late(protocol.Extend), "bridge-extend-late": late(protocol.BridgeExtend),
		"stale-del": &c.StaleDel, "crash": &c.Crash, "dies-in-line": &c.DiesInLine, "cancels": &c.Cancels,
		"restless": &c.Restless, "punctual": &c.Punctual, "once": func() { c.Patience = 0 },

		"lease": &c.Lease, "poll": &c.Poll, "renew": &c.Renew, "grace": &c.Grace, "settle": &c.Settle,
		"claim": &c.Claim, "max-sleep": &c.MaxSleep, "share": &c.Share, "yield": &c.Yield,
		"dialect": func(name string) {
			d, err := protocol.DialectNamed(name)
			if err != nil {
				panic(err)
			}
			c.Dialect, c.Member.Release = d, d.Release
		},
		"release": func(name string) { c.Member.Release = protocol.Release(slices.Index(protocol.Releases, name)) },
		"key":     &c.Key, "behind": &c.Behind, "host": &c.Host, "old-stage": &c.OldStage, "held": &c.Held, "twice": &c.Twice,
		"queue": &c.Queue, "polls": &c.Polls, "plain": &c.Plain, "redisson": &c.Redisson,
		"fence": func() { c.Member.Fence = protocol.FenceKey(key) },
		// The end of its lease in its namespace.
		"until": func(n Ticks) { c.NotAfter = Epoch.Add(ticks(n)) },

		"in-time": &c.InTime, "after": &c.After, "before": &c.Before,
		"old": &c.Scheme,

		// Ablations.
		"put-backs": &c.PutBacks, "no-guard": &c.NoGuard, "truthful": &c.Truthful, "no-deadline": &c.NoDeadline, "from-reply": &c.FromReply,
		"as-taken": &c.AsTaken, "hasty": &c.Hasty, "unchecked": &c.Unchecked, "outlives": &c.Outlives, "ignores": &c.Ignores, "omits": &c.Omits,
		"looks": func() { c.Mutation = &looks },
	}
}

// looks makes a member look at Old where it should take it, and New alone is taken.
var looks = model.Mutation{
	Step: func(_ *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
		if next.Kind == protocol.Send && next.Command.Op == protocol.SetToken {
			next.Command.Op = protocol.Get
		}
		return next
	},
	Reply: func(_ *model.Session, sent *protocol.Command, heard protocol.Reply) protocol.Reply {
		switch {
		case sent.Op != protocol.Get:
		case heard.Kind == protocol.Nil:
			return protocol.Reply{Kind: protocol.Text, Text: "OK"}
		case heard.Kind == protocol.Text:
			return protocol.Reply{Kind: protocol.Nil}
		}
		return heard
	},
}
