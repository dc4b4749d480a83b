package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// How the fleet behaves: many short turns, and a lease that no turn comes near.
const (
	lease       = 2 * time.Second
	ttl         = time.Second
	work        = 12 * time.Millisecond
	rest        = 60 * time.Millisecond
	javaMembers = 5
	goMembers   = 3
)

// story is the demo: a legacy fleet, Go joins it, and the fleet moves: legacy, bridge, modern, back, forward. Then old services come
// back behind a sidecar, and the fleet moves to another server.
var story = []act{
	{
		name: "legacy", title: "a legacy fleet at work", stage: stages.Legacy,
		begin: func(_ context.Context, s *stage) error {
			s.say("%d java services share a lock the old way: SETNX, GET, GETSET, the expiry as the value", javaMembers)
			return s.joinJava(javaMembers, s.opts.Pool)
		},
	},
	{
		name: "join", title: "Go joins on the same key", stage: stages.Legacy,
		begin: func(ctx context.Context, s *stage) error {
			s.say("%d go services join with package compat, at stage legacy; nothing changes for the others", goMembers)
			return s.joinGo(ctx)
		},
	},
	{
		name: "bridge", title: "the bridge, Java beside it", stage: stages.Bridge,
		begin: func(ctx context.Context, s *stage) error {
			return s.move(ctx, s.store, stages.Bridge, "go holds the key with tokens that java reads as an expiry in the far future")
		},
	},
	{
		name: "crash", title: "a Java holder dies inside", stage: stages.Bridge,
		begin: func(_ context.Context, s *stage) error {
			s.victim.Store(s.java[0])
			return nil
		},
		until: func(s *stage) <-chan struct{} { return s.successor },
	},
	{
		name: "modern", title: "Java has left: tokens only", stage: stages.Modern,
		begin: func(ctx context.Context, s *stage) error {
			s.say("the java services are retired, one by one")
			if err := s.retireJava(ctx); err != nil {
				return err
			}
			return s.move(ctx, s.store, stages.Modern, "token and TTL, and nothing is taken over any more")
		},
	},
	{
		name: "back", title: "3 a.m.: back to the bridge", stage: stages.Bridge,
		begin: func(ctx context.Context, s *stage) error {
			if err := s.move(ctx, s.store, stages.Bridge, "something was forgotten, so back it goes"); err != nil {
				return err
			}
			s.say("java is switched on again, and shares the key with go as if nothing had been")
			return s.joinJava(2, s.opts.Pool)
		},
	},
	{
		name: "forward", title: "forward for good", stage: stages.Modern,
		begin: func(ctx context.Context, s *stage) error {
			if err := s.retireJava(ctx); err != nil {
				return err
			}
			return s.move(ctx, s.store, stages.Modern, "complete")
		},
	},
	{
		name: "sidecar", title: "Java is back, unchanged", stage: stages.Modern,
		begin: func(ctx context.Context, s *stage) error { return s.joinBehind(ctx, 2) },
	},
	{
		name: "both", title: "to another server: both locks", stage: stages.Both,
		begin: func(ctx context.Context, s *stage) error { return s.joinElsewhere(ctx) },
	},
	{
		name: "new", title: "the other server alone", stage: stages.New,
		begin: func(ctx context.Context, s *stage) error { return s.leaveForGood(ctx) },
	},
}

// joinJava starts members that behave as the old Java clients do, down to the DEL that asks nothing.
func (s *stage) joinJava(n int, pool lockmigrate.Pool) error {
	for range n {
		locker, err := legacy.New(pool, legacy.Options{Lease: lease, Release: legacy.ReleaseAsDialect})
		if err != nil {
			return err
		}
		s.closers = append(s.closers, func() { _ = locker.Close() })
		s.javas++
		s.java = append(s.java, s.join(fmt.Sprintf("java-%d", s.javas), fleet.Of(locker.Acquire)))
	}
	return nil
}

// retireJava ends the old services at work, each after its turn.
func (s *stage) retireJava(ctx context.Context) error {
	err := retire(ctx, s.java)
	s.java = nil
	return err
}

// joinGo creates the namespace and starts its members, each a service with a Locker of its own.
func (s *stage) joinGo(ctx context.Context) error {
	s.store = &stages.Store{Pool: s.opts.Pool, Namespace: strings.Trim(s.prefix, ":"), ReplyTimeout: replyTimeout}
	s.store.Namespace = strings.ReplaceAll(s.store.Namespace, ":", "-")
	err := s.store.Init(ctx, stages.Record{Stage: stages.Legacy, Patterns: []string{s.prefix + "*"}, Dialect: "jedis-ms", Shortest: lease})
	if err != nil {
		return err
	}
	for i := range goMembers {
		name := fmt.Sprintf("go-%d", i+1)
		locker, err := compat.New(s.opts.Pool, compatOptions(s.store.Namespace, name))
		if err != nil {
			return err
		}
		s.closers = append(s.closers, func() { _ = locker.Close() })
		s.golang = append(s.golang, s.join(name, fleet.Of(locker.Acquire)))
	}
	return nil
}

func compatOptions(namespace, member string) compat.Options {
	return compat.Options{
		Namespace: namespace, Member: member, TTL: ttl, Lease: lease, ShortestLease: lease,
		ClockLag: 100 * time.Millisecond, CommandDelay: 200 * time.Millisecond, ReplyTimeout: ttl * 9 / 10,
	}
}

// move is what the operator does, with what the operator is told.
func (s *stage) move(ctx context.Context, store *stages.Store, to stages.Stage, meaning string) error {
	view, err := store.Show(ctx)
	if err != nil {
		return err
	}
	command := commandFor(store.Namespace, view.Record.Stage, to)
	if store == s.moved {
		command += " --redis " + s.elsewhere
	}
	s.say("%s", command)
	began, last := time.Now(), ""
	mover := &stages.Mover{Store: store, Look: 20 * time.Millisecond}
	err = mover.Run(ctx, to, func(_ stages.View, blockers []stages.Blocker) {
		if why := blockers[0].String(); why != last {
			last = why
			s.say("waiting: %s", why)
		}
	})
	if err != nil {
		return err
	}
	s.say("stage %v after %d ms: %s", to, time.Since(began).Milliseconds(), meaning)
	return nil
}

// commandFor is the operator's command line for a move. The demo watches its members itself; elsewhere verify
// writes a certificate, and takes the place of the reason.
func commandFor(namespace string, from, to stages.Stage) string {
	verb, evidence := "advance", ""
	switch {
	case to < from:
		verb = "rollback"
	case to == stages.Modern, to == stages.New:
		evidence = " --force retired" // or --certificate FILE
	}
	return fmt.Sprintf("lockmigrate stage %s --namespace %s --to %v%s --execute", verb, namespace, to, evidence)
}

// leftovers are the keys that a run may leave.
func (s *stage) leftovers() []any {
	key := s.key()
	keys := []any{key}
	for _, k := range protocol.CompanionNames(key) {
		keys = append(keys, k)
	}
	if s.moved != nil {
		keys = append(keys, stages.MarkKey(s.moved.Namespace))
	}
	if s.store != nil {
		keys = append(keys, stages.RecordKey(s.store.Namespace), stages.MembersKey(s.store.Namespace), sidecar.ListKey(s.store.Namespace, sidecarName))
	}
	return keys
}

// entered tells of overlaps, and of the first to get in after a crash.
func (s *stage) entered(w *fleet.Worker, beside []*fleet.Worker) {
	for _, first := range beside {
		s.event(true, "OVERLAP: %s came in while %s was inside", w.Name, first.Name)
	}
	s.mu.Lock()
	s.overlaps += len(beside)
	died := s.crashedAt
	s.crashedAt = time.Time{}
	s.mu.Unlock()
	if !died.IsZero() {
		s.say("%s takes over %.2f s later, as soon as the lease of %v is over", w.Name, time.Since(died).Seconds(), lease)
		select {
		case s.successor <- struct{}{}:
		default:
		}
	}
}

// dies tells that a service dies inside.
func (s *stage) dies(w *fleet.Worker) bool {
	if !s.victim.CompareAndSwap(w, nil) {
		return false
	}
	w.Stop()
	s.say("%s dies while it holds the lock; the key has no TTL, so everybody waits for the expiry on it", w.Name)
	s.mu.Lock()
	s.crashedAt = time.Now()
	s.mu.Unlock()
	return true
}

// StageResult is what the referee counted in all acts of one stage.
type StageResult struct {
	Stage    string
	Turns    int
	Overlaps int
}

// Stages sums the acts up by stage, in the order of the story.
func (r *Result) Stages() []StageResult {
	var all []StageResult
	for _, a := range r.Acts {
		i := slices.IndexFunc(all, func(s StageResult) bool { return s.Stage == a.Stage })
		if i < 0 {
			i = len(all)
			all = append(all, StageResult{Stage: a.Stage})
		}
		all[i].Turns += a.Turns
		all[i].Overlaps += a.Overlaps
	}
	return all
}

// sidecarName is of the service that comes back.
const sidecarName = "java"

// joinBehind starts a sidecar, and Java members that do what they always did, but for the address that they connect to.
func (s *stage) joinBehind(ctx context.Context, n int) error {
	through, err := fleet.StartSidecar(ctx, s.opts.Pool, s.opts.End, sidecar.Options{Namespace: s.store.Namespace, Name: sidecarName, Lease: lease}, s.key())
	if err != nil {
		return err
	}
	s.closers = append(s.closers, through.Close)
	s.say("lockmigrate sidecar --namespace %s --name %s --listen %s", s.store.Namespace, sidecarName, through.Addr)
	s.say("%d java services come back as they were, with the sidecar's address in place of the server's: they hold tokens now", n)
	return s.joinJava(n, through.Pool())
}
