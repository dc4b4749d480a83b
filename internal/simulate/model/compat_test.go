package model_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

const lockKey = "lock.member"

// sent is what a member sends, and after how long.
type sent struct {
	acquire, settle, renew, joins map[string]string // the scripts' arguments by name
	settles, renews               time.Duration
}

// TestMemberIsTheSimulators: a member of package compat sends a real server what the member of the simulator sends that is made of
// the same figures: TTL, grace, unit, layout and gap, settling, claim, the TTL of the queue, renewals; at stage bridge and at stage modern.
func TestMemberIsTheSimulators(t *testing.T) {
	for _, c := range []struct {
		name  string
		stage lockmigrate.Stage
		given compat.Options
		terms protocol.MemberTerms
	}{
		{"defaults", lockmigrate.StageBridge, compat.Options{}, protocol.MemberTerms{}},
		{"other figures", lockmigrate.StageBridge, compat.Options{TTL: 5 * time.Second, ShortestLease: 4 * time.Second, ClockLag: 2 * time.Second, CommandDelay: 700 * time.Millisecond, Yield: 300 * time.Millisecond},
			protocol.MemberTerms{TTL: 5 * time.Second, Shortest: 4 * time.Second, ClockLag: 2 * time.Second, CommandDelay: 700 * time.Millisecond, Yield: 300 * time.Millisecond}},
		{"a short lease", lockmigrate.StageBridge, compat.Options{ShortestLease: 2 * time.Second}, protocol.MemberTerms{Shortest: 2 * time.Second}},
		{"modern", lockmigrate.StageModern, compat.Options{ShortestLease: 2 * time.Second}, protocol.MemberTerms{Shortest: 2 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			real, played := sentByCompat(t, c.stage, c.given), sentByModel(t, c.stage, c.terms)
			for what, pair := range map[string][2]map[string]string{
				"acquire": {real.acquire, played.acquire}, "settle": {real.settle, played.settle}, "renew": {real.renew, played.renew}, "join the queue": {real.joins, played.joins},
			} {
				assert.Equal(t, pair[0], pair[1], what)
			}
			// A busy machine does all of this later, never earlier.
			assert.GreaterOrEqual(t, real.settles+time.Millisecond, played.settles, "settle")
			assert.GreaterOrEqual(t, real.renews+100*time.Millisecond, played.renews, "renew")
			assert.Less(t, real.renews, played.renews+played.renews/2+2*time.Second, "renew")
		})
	}
}

// arguments are those of a call that say how a member works.
func arguments(s *scripts.Script, args []string) map[string]string {
	kept := map[string]string{}
	for name, value := range s.Read(args) {
		switch name {
		case "ttl", "rules", "gap":
			kept[name] = value
		case "queue_ttl":
			if kept[name] = value; value == "0" {
				delete(kept, name)
			}
		case "entry":
			if entry, ok := protocol.ParseEntry(value); ok {
				kept["claim"] = entry.Claim.String()
			}
		}
	}
	return kept
}

// sentByCompat has a real Locker take a key from an old client whose lease is over, at stage bridge, renew it, and another one wait.
func sentByCompat(t *testing.T, stage lockmigrate.Stage, o compat.Options) (s sent) {
	server := redistest.Real(t)
	if stage == lockmigrate.StageBridge {
		expired, _ := protocol.JedisMS.Expiry(protocol.Instant(time.Now().Add(-time.Minute).UnixNano()), 0, "")
		server.Do("SET", lockKey, expired)
	}
	name, err := redistest.InStage(server.Pool(), stage, "jedis-ms", max(o.ShortestLease, 2*time.Second))
	require.NoError(t, err)
	if o.Namespace = name; o.ShortestLease == 0 {
		server.Do("HSET", "lockmigrate:{"+name+"}:stage", "clients", `{"dialect":"jedis-ms","shortest_ms":10000}`)
	}
	monitor := server.Monitor()
	holder, err := compat.New(server.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, holder.Close()) })
	lock, err := holder.Acquire(t.Context(), lockKey)
	require.NoError(t, err)
	waiter, err := compat.New(server.Pool(), o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, waiter.Close()) })
	waited := make(chan error, 1)
	go func() {
		other, err := waiter.Acquire(t.Context(), lockKey)
		if err == nil {
			err = other.Release(t.Context())
		}
		waited <- err
	}()
	var taken, won, renewed time.Time
	redistest.Await(t, "a renewal, and a waiter in the queue", func() bool {
		for _, c := range monitor.Commands() {
			if c.Words[0] != "EVALSHA" && c.Words[0] != "EVAL" {
				continue
			}
			script, args := called(c.Words)
			switch script {
			case scripts.BridgeAcquire:
				if with := arguments(script, args); with["claim"] != "" {
					s.joins = with
				} else if s.acquire == nil {
					s.acquire, taken, won = with, c.At, c.At
				}
			case scripts.BridgeSettle:
				s.settle, won = arguments(script, args), c.At
				s.settles = c.At.Sub(taken)
			case scripts.BridgeRenew:
				if renewed.IsZero() {
					s.renew, renewed = arguments(script, args), c.At
				}
			}
		}
		return s.joins != nil && s.renew != nil
	})
	s.renews = renewed.Sub(won)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-waited)
	return s
}

// called is the script of a call, and its arguments without the keys.
func called(words []string) (*scripts.Script, []string) {
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew} {
		if words[1] == s.Digest || strings.Contains(words[1], "-- "+s.Name) || words[1] == s.Source {
			keys := int(words[2][0] - '0')
			return s, words[3+keys:]
		}
	}
	return nil, nil
}

// sentByModel does the same with the simulator's member.
func sentByModel(t *testing.T, stage lockmigrate.Stage, terms protocol.MemberTerms) (s sent) {
	who := model.Member{Name: "m", Dialect: protocol.JedisMS, Key: lockKey, Patience: time.Hour}
	m := model.CompatMember(who, terms, stage == lockmigrate.StageModern)
	session := model.NewSession(0, &m)
	args := func(step protocol.Step) map[string]string {
		t.Helper()
		require.Equal(t, protocol.Send, step.Kind)
		r, err := wire.RequestOf(step.Command)
		require.NoError(t, err)
		words := []string{r.Name}
		for _, a := range r.Args() {
			words = append(words, fmt.Sprint(a))
		}
		script, args := called(words)
		return arguments(script, args)
	}
	now := model.Reading{}
	step := session.Acquire(now)
	s.joins = args(step)
	s.acquire = map[string]string{"ttl": s.joins["ttl"], "rules": s.joins["rules"]}
	if stage == lockmigrate.StageBridge {
		step = session.Next(now, protocol.Reply{Kind: protocol.Integer, Int: protocol.TakeOver})
		require.Equal(t, protocol.Sleep, step.Kind)
		s.settles = step.Sleep
		s.settle = args(session.Next(now, protocol.Reply{Kind: protocol.Woke}))
		session.Next(now, protocol.Reply{Kind: protocol.Integer, Int: protocol.SettleDone})
	} else {
		session.Next(now, protocol.Reply{Kind: protocol.Integer, Int: protocol.TakeFree})
	}
	require.True(t, session.Holds())
	s.renews = m.Renew
	s.renew = args(session.Renew(now))
	return s
}
