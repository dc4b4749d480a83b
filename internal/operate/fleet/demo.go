package fleet

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// Event is one line of a timeline.
type Event struct {
	At    Millis `json:"at_ms"` // since the beginning
	Act   string `json:"act"`
	Text  string `json:"text"`
	Alarm bool   `json:"alarm,omitempty"` // something that must not happen
}

func (p *player) say(format string, args ...any) { p.event(false, format, args...) }

func (p *player) event(alarm bool, format string, args ...any) {
	p.telling.Lock()
	defer p.telling.Unlock()
	p.Event(Event{millis(time.Since(p.began)), p.act, fmt.Sprintf(format, args...), alarm})
}

// How the fleet of the demo behaves: many short turns, and a lease that no turn comes near.
const (
	lease       = 2 * time.Second
	work        = 12 * time.Millisecond
	rest        = 60 * time.Millisecond
	javaMembers = 5
	goMembers   = 3
	// longestAct bounds the wait for an act's event, and for its first turn: the member that is to die inside may have to wait until it gets in.
	longestAct = 20 * time.Second
	keptOut    = 10 // failures of an act without a turn
)

// story is the demo: a legacy fleet, Go joins it, and the fleet moves: legacy, bridge, modern, back, forward. Then old services come
// back behind a sidecar, and the fleet moves to another server.
var story = []act{
	{name: "a legacy fleet at work", short: "legacy", stage: stages.Legacy, cast: cast{1, old, absent, absent},
		what: "5 java services share a lock the old way: SETNX, GET, GETSET, the expiry as the value"},
	{name: "Go joins on the same key", short: "join", stage: stages.Legacy, cast: cast{1, old, absent, member},
		what: "3 go services join with package compat, at stage legacy; nothing changes for the others"},
	{name: "the bridge, Java beside it", short: "bridge", stage: stages.Bridge, cast: cast{1, old, absent, member},
		what: "go holds the key with tokens now, which java reads as an expiry in the far future"},
	{name: "a Java holder dies inside", short: "crash", stage: stages.Bridge, cast: cast{1, old, absent, member}, begin: crash,
		what: "one of the java services is killed inside"},
	{name: "Java has left: tokens only", short: "modern", stage: stages.Modern, cast: cast{0, old, absent, member},
		what: "the java services are retired; from here on it is token and TTL, and nothing is taken over any more"},
	{name: "3 a.m.: back to the bridge", short: "back", stage: stages.Bridge, cast: cast{0.4, old, absent, member},
		what: "something was forgotten, so back it goes; java is switched on again, and shares the key as if nothing had been"},
	{name: "forward for good", short: "forward", stage: stages.Modern, cast: cast{0, old, absent, member}, what: "java is retired"},
	{name: "Java is back, unchanged", short: "sidecar", stage: stages.Modern, cast: cast{0.4, behind, absent, member},
		what: "2 java services come back as they were, each with a sidecar's address in place of the server's: they hold tokens now"},
	{name: "to another server: both locks", short: "both", stage: stages.Both, cast: cast{0.4, behind, absent, elsewhere},
		what: "go is deployed anew, with package handover, and holds the lock of both servers; java, which knows one, is still kept out"},
	{name: "the other server alone", short: "new", stage: stages.New, cast: cast{0, old, absent, elsewhere},
		what: "java and its sidecars are retired; the first server is not asked any more"},
}

// misfortune is the death of a service while it holds the lock.
type misfortune struct {
	due       atomic.Bool
	at        atomic.Pointer[time.Time] // when it died; nil: nobody has, or somebody was inside since
	successor chan struct{}
}

// crash has a service die the next time that it is inside, and waits until somebody has taken over from it.
func crash(ctx context.Context, p *player) {
	p.death.due.Store(true)
	select {
	case <-p.death.successor:
	case <-time.After(longestAct):
	case <-ctx.Done():
	}
}

// Demo tells the story of a migration. It leaves no key behind, also when ctx ends it early. o.Clients and o.Record are the story's own.
func Demo(ctx context.Context, o Options) error {
	dialect, err := protocol.DialectNamed("jedis-ms")
	if err != nil {
		return err
	}
	o.Record = stages.Record{Dialect: dialect.String(), Shortest: lease, ClockLag: 100 * time.Millisecond, CommandDelay: 200 * time.Millisecond}
	o.Clients = nil
	for i := range javaMembers + goMembers {
		c := Client{Old: Old{Dialect: dialect, Lease: lease, Poll: dialect.Poll}, Worker: Worker{
			Name: fmt.Sprintf("java-%d", i+1), Key: func() string { return "orders" },
			Hold:  func() time.Duration { return work/4 + mathrand.N(work*3/4) },
			Think: func() time.Duration { return time.Millisecond + mathrand.N(rest) },
		}}
		if i >= javaMembers {
			c.Name, c.Go = fmt.Sprintf("go-%d", i+1-javaMembers), true
		}
		o.Clients = append(o.Clients, c)
	}
	p, err := newPlayer(o, "lockmigrate-demo")
	if err != nil {
		return err
	}
	defer p.close()
	p.story, p.spoken.namespace, p.spoken.server = true, p.Record.Namespace, o.Other.String()
	p.death.successor = make(chan struct{}, 1)
	p.Clients[0].Dies = func() bool {
		if !p.death.due.CompareAndSwap(true, false) {
			return false
		}
		p.say("java-1 dies while it holds the lock, and is started again; the key has no TTL, so everybody waits for the expiry on it")
		now := time.Now()
		p.death.at.Store(&now)
		return true
	}
	p.referee.Entered = func(w *Worker, beside []*Worker) {
		for _, first := range beside {
			p.event(true, "OVERLAP: %s came in while %s was inside", w.Name, first.Name)
		}
		if died := p.death.at.Swap(nil); died != nil {
			p.say("%s takes over %.2f s later, as soon as the lease of %v is over", w.Name, time.Since(*died).Seconds(), lease)
			p.death.successor <- struct{}{}
		}
	}
	return p.run(ctx, story)
}

// nobody is the error of an act in which nobody got the lock: what kept the members out.
func (p *player) nobody(a act) error {
	if err := p.referee.Last(); err != nil {
		return endpoint.Explain(err)
	}
	return fmt.Errorf("nobody got the lock in the act %q", a.name)
}

// first waits for the first turn of an act: one who has just retired may have left a place in the queue, and a busy server does not always answer in
// time. Where the members fail again and again they are kept out.
func (p *player) first(ctx context.Context, s Sheet) Sheet {
	for began := time.Now(); s.Turns == 0 && s.failed() < keptOut && time.Since(began) < longestAct && lifetime.Sleep(ctx, 10*time.Millisecond) == nil; {
		before := s.Failures
		s = p.referee.Since()
		s.Failures = profile.Sum(before, s.Failures)
	}
	return s
}
