package sidecar

import (
	"slices"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// keys are the keys that the service may hold. What is not on the list is not held: a key goes on it before the command that may take it is
// sent, and leaves it when no such command can act any more and the server says that nothing of ours is there.
type keys struct {
	mu      sync.Mutex
	all     map[string]*watched
	longest time.Duration     // of the leases that were asked for
	first   stages.Stage      // of the stages of the namespace
	changes map[string]string // of the list on the server, see entry; empty: the key leaves it
}

type watched struct {
	acts     [3]time.Time // for each stage: until when a command of it may act
	holds    [3]bool      // ... and whether something of it was there at the last look
	next     time.Time    // of the looks
	attempt  time.Time    // the last one
	wanted   time.Time    // when two wanted it last
	waits    bool         // no DEL came since: it was refused, or the lock is in use
	displace bool         // that was told
	endless  bool         // the last attempt wrote no time
	tried    int64        // the connection that had come last at the first attempt since the last look; 0: no attempt
	token    string       // of the lock at the last look
	since    int64        // the connection that had come last before that token's attempt
	gone     time.Time    // when all connections up to that one had ended; zero: not yet
	orphan   bool         // that was told
	entry    string       // on the list on the server; empty: none
	left     bool         // of a handover: Old has a value, be it over
	refused  bool         // the server does not let this sidecar look at it; that was told
}

// wait puts a key on the list, and tells whether the attempt waits for the lock to be handed over: the lock is in use, as far as we know, or
// others want it too. It is not put there if the order has changed: stale says so.
func (k *keys) wait(s *Sidecar, o *order, rules *protocol.Sidecar, c *proxy.Client, command *protocol.Command, multi bool, now time.Time) (waits, stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.order.Load().Epoch != o.Epoch {
		return false, true
	}
	w := k.entry(command.Key, now.Add(s.every(o)))
	if w.tried == 0 {
		w.tried = s.clients.latest()
	}
	w.endless = command.Sidecar.Until == 0
	k.note(s, command.Key, w)
	if nx := command.Sidecar.Form == protocol.FormSetNX || command.Sidecar.Form == protocol.FormSet; nx && s.opts.Hold > 0 && !c.Held && s.hears.Load() && !multi { // to ask for the lock would break the WATCH of the transaction
		s.waking.Lock()
		woken, handed := s.woken, s.handed.After(w.attempt)
		s.waking.Unlock()
		waits := w.waits && now.Sub(w.attempt) < 3*command.Claim
		if waits {
			w.wanted = now
		}
		if now.Sub(w.wanted) < wantedFor && !(waits && handed) { // it would be refused: so it waits from the beginning
			w.acts[stages.Number(o.Stage)], w.attempt = o.Until, now
			c.Wake, c.Patience = s.reserve(rules, o, command.Key, now, woken), s.opts.Hold
			return true, false
		}
	}
	w.acts[stages.Number(o.Stage)] = o.Until
	w.attempt, w.waits = now, true
	k.lasts(s, command.TTL)
	return false, false
}

// entry is that of a key, which goes on the list if it is not there, and is looked at by then: where nothing was found, the next look was to come when
// no command could act any more. The caller has k.mu.
func (k *keys) entry(key string, look time.Time) *watched {
	w := k.all[key]
	if w == nil {
		w = &watched{next: look}
		k.all[key] = w
	} else if !look.IsZero() && look.Before(w.next) {
		w.next = look
	}
	return w
}

// lasts notes a lease that was asked for. The caller has k.mu.
func (k *keys) lasts(s *Sidecar, ttl time.Duration) {
	if ttl > k.longest && ttl < protocol.Century {
		k.longest = ttl
		s.tellNews()
	}
}

func (k *keys) longer(s *Sidecar, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lasts(s, ttl)
}

// passed notes a command that passes at stage legacy, and may leave a value on the key. It does not if the order has changed.
func (k *keys) passed(s *Sidecar, o *order, key string, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.order.Load().Epoch != o.Epoch {
		return false
	}
	w := k.entry(key, now.Add(s.every(o)))
	w.acts[stages.Legacy], w.attempt = o.Until, now
	k.note(s, key, w)
	return true
}

// begin notes what a command that this process carries out may leave on its keys. It does not if the order has changed.
func (k *keys) begin(x *exchange, now time.Time) bool {
	s := x.sidecar
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.order.Load().Epoch != x.o.Epoch {
		return false
	}
	if x.known.mode == spares || x.known.mode == reads || x.name == "GET" {
		return true
	}
	for _, i := range x.at {
		key := string(x.args[i])
		w := k.entry(key, time.Time{})
		if w.tried == 0 {
			w.tried = s.clients.latest()
		}
		w.acts[stages.Number(x.o.Stage)], w.attempt, w.waits = x.o.Until, now, true
		if len(x.args) > 2 {
			command := x.rules.SetNX(x.now(), key, string(x.args[2]), "", protocol.FormSetNX)
			w.endless = command.Sidecar.Until == 0 && len(x.args) < 5
			k.lasts(s, command.TTL)
		}
		k.note(s, key, w)
	}
	return true
}

// of tells about a key on the list.
func (k *keys) of(key string, tell func(w *watched)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.all[key]; w != nil {
		tell(w)
	}
}

// elsewhere tells whether anything of a key may be where the commands of a stage do not go.
func (k *keys) elsewhere(key string, stage int, now time.Time) (may bool) {
	k.of(key, func(w *watched) {
		may = w.inherited() || stage == 2 && w.left
		for other := range w.acts {
			may = may || other != stage && w.may(other, now)
		}
	})
	return may
}

// alone notes that a lock is given back but at one stage.
func (k *keys) alone(key string, stage int) {
	k.of(key, func(w *watched) {
		w.holds, w.left = [3]bool{}, stage == 0
		w.holds[stage] = true
	})
}

// onOld tells whether a key counts as held at stage old.
func (k *keys) onOld(key string) (is bool) {
	k.of(key, func(w *watched) { is = w.holds[stages.Legacy] })
	return is
}

// tokens tells whether a token may stand on a key: one was attempted or seen, or the process before had the key and nobody has looked yet.
func (k *keys) tokens(key string, now time.Time) (may bool) {
	k.of(key, func(w *watched) {
		may = w.may(int(stages.Bridge), now) || w.may(int(stages.Modern), now) || w.inherited()
	})
	return may
}

// may tells whether something of a stage is held, or may be taken as yet.
func (w *watched) may(stage int, now time.Time) bool {
	return w.holds[stage] || now.Before(w.acts[stage])
}

// inherited tells that the process before had the key, and nobody has looked since.
func (w *watched) inherited() bool { return w.since == before && w.next.IsZero() }

// given notes a DEL: what was attempted before it was granted.
func (k *keys) given(s *Sidecar, key string) {
	k.of(key, func(w *watched) {
		if w.waits {
			w.waits = false
			s.counts.granted.Add(1)
		}
	})
}

// contended notes that an attempt which was held back has to wait.
func (k *keys) contended(key string) {
	k.of(key, func(w *watched) { w.wanted = time.Now() })
}

// stages returns the lowest and the highest stage with a lock that may be held (-1: none), and for how long a lock can outlive
// its last renewal.
func (k *keys) stages(lease time.Duration) (low, high stages.Stage, longest time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	low, high = -1, -1
	now := time.Now()
	for _, w := range k.all {
		for stage := range w.acts {
			if w.may(stage, now) {
				low, high = lowest(low, k.first+stages.Stage(stage)), max(high, k.first+stages.Stage(stage))
			}
		}
	}
	return low, high, max(lease, k.longest)
}

// due are the keys that are to be looked at, what has waited longest first.
func (k *keys) due(now time.Time) (due []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, w := range k.all {
		if now.After(w.next) {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b string) int { return k.all[a].next.Compare(k.all[b].next) })
	return due
}

func latest(times [3]time.Time, t time.Time) time.Time {
	for _, other := range times {
		if other.After(t) {
			t = other
		}
	}
	return t
}
