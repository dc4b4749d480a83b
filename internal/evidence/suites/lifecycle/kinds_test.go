package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// kind is a kind of lock.
type kind struct {
	name string
	open func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error)

	servers   int  // how many it needs; 0: one
	pooled    bool // over a pool of one connection that only hands it out, as a pool that somebody has wrapped
	excludes  bool // two holders at once are a violation: not so in the old scheme, see package legacy
	fair      bool // nobody is passed over for ever
	renews    bool // by itself, while the lock is held
	owners    bool // acquisitions are reentrant
	namespace bool
	stage     stages.Stage // of the namespace; anyStage: a random one
	counts    bool         // draws fencing tokens
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

func ofModern(change func(*modern.Options)) func([]lockmigrate.Pool, terms) (lockmigrate.Locker, error) {
	return func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		o := modern.Options{TTL: t.ttl, ReplyTimeout: t.reply, Poll: poll, Observer: t.observer}
		change(&o)
		return modern.New(pools[0], o)
	}
}

func ofCompat(change func(*compat.Options, terms)) func([]lockmigrate.Pool, terms) (lockmigrate.Locker, error) {
	return func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		o := compat.Options{
			TTL: t.ttl, Lease: t.ttl, ShortestLease: t.ttl, ClockLag: 10 * time.Millisecond, CommandDelay: 20 * time.Millisecond,
			Yield: 30 * time.Millisecond, FenceTTL: 3 * t.ttl,
			ReplyTimeout: t.reply, Observer: t.observer,
		}
		change(&o, t)
		return compat.New(pools[0], o)
	}
}

func ofLegacy(policy legacy.ReleasePolicy) func([]lockmigrate.Pool, terms) (lockmigrate.Locker, error) {
	return func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
		return legacy.New(pools[0], legacy.Options{Lease: t.ttl, Poll: poll, ReplyTimeout: t.reply, Release: policy, Observer: t.observer})
	}
}

func member(o *compat.Options, t terms) { o.Namespace = t.name }

// kinds are all of them.
func kinds() []kind {
	return []kind{
		{name: "legacy-unexpired", open: ofLegacy(legacy.ReleaseUnexpired), old: true},
		{name: "legacy-dialect", open: ofLegacy(legacy.ReleaseAsDialect), old: true},
		{name: "legacy-compare", open: ofLegacy(legacy.ReleaseCompare), old: true},
		{name: "compat-legacy", open: ofCompat(member), namespace: true, stage: stages.Legacy, old: true, renews: true},
		{name: "compat-bridge", open: ofCompat(func(*compat.Options, terms) {}), excludes: true, fair: true, renews: true, counts: true},
		{name: "compat-modern", open: ofCompat(member), namespace: true, stage: stages.Modern, excludes: true, fair: true, renews: true, counts: true},
		{name: "compat-member", open: ofCompat(member), namespace: true, stage: anyStage, renews: true, counts: true, old: true},
		{name: "modern", open: ofModern(func(*modern.Options) {}), excludes: true, fair: true, renews: true},
		{name: "modern-fenced", open: ofModern(func(o *modern.Options) { o.FenceTTL = 3 * o.TTL }), excludes: true, fair: true, renews: true, counts: true},
		{name: "modern-unfair", open: ofModern(func(o *modern.Options) { o.Unfair = true }), excludes: true, renews: true},
		{name: "modern-norenewal", open: ofModern(func(o *modern.Options) { o.RenewEvery = -1 }), excludes: true, fair: true},
		{name: "modern-yield", open: ofModern(func(o *modern.Options) { o.Yield = 20 * time.Millisecond }), excludes: true, fair: true, renews: true},
		{name: "modern-pooled", open: ofModern(func(*modern.Options) {}), pooled: true, excludes: true, fair: true, renews: true},
		{name: "modern-owner", open: ofModern(func(*modern.Options) {}), excludes: true, fair: true, renews: true, owners: true},
		{name: "redisson", excludes: true, renews: true, owners: true, open: func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
			return redisson.New(pools[0], modern.Options{TTL: t.ttl, ReplyTimeout: t.reply, Poll: poll, Observer: t.observer})
		}},
		{name: "quorum", servers: 3, excludes: true, renews: true, open: func(pools []lockmigrate.Pool, t terms) (lockmigrate.Locker, error) {
			return quorum.New(pools, modern.Options{TTL: t.ttl, ReplyTimeout: t.reply, Poll: poll, Observer: t.observer})
		}},
	}
}

// locks are the keys that make a lock taken.
func (k kind) locks(key string) []string {
	if len(k.name) > 6 && k.name[:6] == "compat" {
		return []string{key, protocol.GuardKey(key)}
	}
	return []string{key}
}

const anyStage = stages.Stage(-1)

// prepare makes the record of a sequence's namespace, as `stage init` would.
func prepare(s *world.Server, p *plan) {
	stage := p.kind.stage
	if stage == anyStage {
		stage = stages.Stage(rand.New(rand.NewPCG(p.seed, 3)).IntN(3))
	}
	s.Do("HMSET", stages.RecordKey(p.terms.name), "epoch", 1, "stage", int(stage),
		"since", s.Now().UnixMilli(), "patterns", fmt.Sprintf("[%q]", p.key), "clients",
		fmt.Sprintf(`{"dialect":"jedis-ms","shortest_ms":%d}`, p.terms.ttl.Milliseconds()))
}
