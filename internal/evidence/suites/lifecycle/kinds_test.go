package lifecycle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// kind is a kind of lock. Which options a sequence's locks have, its seed draws.
type kind struct {
	name string
	draw func(g *rand.Rand) variant
}

// variant is what the locks of one sequence are, and what they promise.
type variant struct {
	options string // that were drawn
	open    func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error)

	servers   int  // how many it needs; 0: one
	deaf      bool // may not subscribe: its waiters look now and then
	excludes  bool // two holders at once are a violation: not so in the old scheme, see package legacy
	fair      bool // nobody is passed over for ever
	renews    bool // by itself, while the lock is held
	owners    bool // acquisitions are reentrant
	guarded   bool // a second key makes it taken too
	namespace bool
	stage     stages.Stage // of the namespace
	old       bool         // leaves a value without a TTL, which is over when its time is
}

// terms are what a sequence wants of its locks.
type terms struct {
	ttl      time.Duration
	reply    time.Duration // the timeout of a reply
	name     string        // the namespace
	observer lockmigrate.Observer
}

const poll = 40 * time.Millisecond

// legacyLock gives back in one of the three ways, and now and then takes over by WATCH, over a connection of the pool.
func legacyLock(g *rand.Rand) variant {
	policy := []legacy.ReleasePolicy{legacy.ReleaseUnexpired, legacy.ReleaseAsDialect, legacy.ReleaseCompare}[g.IntN(3)]
	dialect := legacy.Dialect{Name: []string{"jedis-ms", "jedis-ms", "servicestack"}[g.IntN(3)]}
	return variant{options: fmt.Sprint("dialect ", dialect.Name, ", release policy ", policy), old: true, open: func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		return legacy.New(pools[0], legacy.Options{Dialect: dialect, Lease: t.ttl, Poll: poll, ReplyTimeout: t.reply, Release: policy, Observer: t.observer})
	}}
}

// compatLock is at any stage: as a member of a namespace, or without one, which is the bridge.
func compatLock(g *rand.Rand) variant {
	stage := []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern}[g.IntN(3)]
	v := variant{namespace: stage != stages.Bridge || g.IntN(3) == 0, stage: stage, renews: true, guarded: true}
	v.old, v.excludes, v.fair = stage == stages.Legacy, stage != stages.Legacy, stage != stages.Legacy
	v.options = fmt.Sprint("stage ", stage, ", member ", v.namespace)
	v.open = func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		o := compat.Options{
			TTL: t.ttl, Lease: t.ttl, ShortestLease: t.ttl, ClockLag: 10 * time.Millisecond, CommandDelay: 20 * time.Millisecond,
			Yield: 30 * time.Millisecond, FenceTTL: 3 * t.ttl, ReplyTimeout: t.reply, Observer: t.observer,
		}
		if v.namespace {
			o.Namespace = t.name
		}
		return compat.New(pools[0], o)
	}
	return v
}

// modernLock has each option that changes what is sent, or who waits, now and then.
func modernLock(g *rand.Rand) variant {
	var drawn modern.Options
	fenced := g.IntN(3) == 0
	switch g.IntN(5) {
	case 0:
		drawn.Unfair = true
	case 1:
		drawn.Yield = 20 * time.Millisecond
	}
	if g.IntN(5) == 0 {
		drawn.RenewEvery = -1
	}
	v := variant{excludes: true, fair: !drawn.Unfair, renews: drawn.RenewEvery == 0, deaf: g.IntN(5) == 0, owners: g.IntN(4) == 0}
	v.options = fmt.Sprintf("fenced %v, unfair %v, yield %v, renews %v, deaf %v, owners %v", fenced, drawn.Unfair, drawn.Yield, v.renews, v.deaf, v.owners)
	v.open = func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		o := t.modern()
		o.Unfair, o.Yield, o.RenewEvery = drawn.Unfair, drawn.Yield, drawn.RenewEvery
		if fenced {
			o.FenceTTL = 3 * t.ttl
		}
		return modern.New(pools[0], o)
	}
	return v
}

func redissonLock(*rand.Rand) variant {
	return variant{excludes: true, renews: true, owners: true, open: func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		return redisson.New(pools[0], t.modern())
	}}
}

func quorumLock(*rand.Rand) variant {
	return variant{servers: 3, excludes: true, renews: true, open: func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		return quorum.New(pools, t.modern())
	}}
}

// handoverLock moves from modern on one server to modern on another, and is at any stage. In a strict sequence the member's lease is no reason to lose anything.
func handoverLock(g *rand.Rand) variant {
	stage := []stages.Stage{stages.Old, stages.Both, stages.New}[g.IntN(3)]
	v := variant{servers: 2, namespace: true, stage: stage, excludes: true, renews: true, options: fmt.Sprint("stage ", stage)}
	v.open = func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		half := t
		half.observer = func(e lockmigrate.Event) { // the sequence counts whole locks
			if e.Kind != lockmigrate.EventRenewed {
				e.Kind = lockmigrate.EventFailed
			}
			t.observer(e)
		}
		var both [2]lockmigrate.Locker
		for i, pool := range pools {
			var err error
			if both[i], err = modern.New(pool, half.modern()); err != nil {
				return nil, err
			}
		}
		l, err := handover.New(pools[1], handover.Options{Namespace: t.name, Old: both[0], New: both[1], Lease: max(4*t.ttl, 300*time.Millisecond), ReplyTimeout: t.reply, Observer: t.observer})
		return whole{l, both}, err
	}
	return v
}

// whole closes its halves behind itself.
type whole struct {
	lockmigrate.Locker
	halves [2]lockmigrate.Locker
}

func (w whole) Close() error {
	return errors.Join(w.Locker.Close(), w.halves[0].Close(), w.halves[1].Close())
}

func (t terms) modern() modern.Options {
	return modern.Options{TTL: t.ttl, ReplyTimeout: t.reply, Poll: poll, Observer: t.observer}
}

// kinds are all of them.
var kinds = []kind{
	{"legacy", legacyLock},
	{"compat", compatLock},
	{"modern", modernLock},
	{"redisson", redissonLock},
	{"quorum", quorumLock},
	{"handover", handoverLock},
}

// keys are those that make a lock taken.
func (v variant) keys(key string) []string {
	if v.guarded {
		return []string{key, protocol.GuardKey(key)}
	}
	return []string{key}
}

// prepare makes the record of a sequence's namespace, as `stage init` would.
func prepare(servers []*world.Server, p *plan) {
	clients := fmt.Sprintf(`{"dialect":"jedis-ms","shortest_ms":%d}`, p.terms.ttl.Milliseconds())
	if p.variant.stage > stages.Modern {
		for i, s := range servers {
			s.Do("SET", stages.MarkKey(p.terms.name), i)
		}
		clients = `{"handover":{"old":{"mark":"0"},"new":{"mark":"1"}}}`
	}
	s := servers[len(servers)-1]
	s.Do("HMSET", stages.RecordKey(p.terms.name), "epoch", 1, "stage", int(p.variant.stage)%int(stages.Old),
		"since", s.Now().UnixMilli(), "patterns", fmt.Sprintf("[%q]", p.key), "clients", clients)
}
