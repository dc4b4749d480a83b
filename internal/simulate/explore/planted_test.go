package explore

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// planted is a test of the tests: a bug, and a world that is exclusive without it and is not with it.
type planted struct {
	name  string
	world setting
	plant func(*Model)
}

// setting is a world by its claim's name, or by its text.
type setting struct {
	name string
	make func() *Model
}

// proved are the settings that this run has searched to their ends, for TestClaims or for another bug.
var proved sync.Map

// TestPlanted searches each world twice. docs/planted-bugs.md lists the bugs with their commands.
func TestPlanted(t *testing.T) {
	bugs := plantedBugs()
	require.GreaterOrEqual(t, len(bugs), 30)
	for _, bug := range bugs {
		t.Run(bug.name, func(t *testing.T) {
			parallel(t)
			m := bug.world.make()
			bug.plant(m)
			found := Search(context.Background(), m, searchLimit)
			if found.Verdict == Incomplete && searchLimit < DefaultStates {
				t.Skipf("left out: more than %d states; `make test` catches it (LOCKMIGRATE_SUITES=proofs)", searchLimit)
			}
			require.Equal(t, Violated, found.Verdict, "not caught; %d states were searched", found.States)
			t.Logf("caught after %d states: %d commands", found.States, found.Ran)
			if _, already := proved.Load(bug.world.name); already {
				return
			}
			// Without the component proofs the sound world is searched as far as the bug was found, and a little beyond.
			limit := searchLimit
			if limit < DefaultStates {
				limit = min(limit, 2*found.States)
			}
			sound := Search(context.Background(), bug.world.make(), limit)
			require.NotEqual(t, Violated, sound.Verdict, "broken without the bug:\n%s", strings.Join(sound.Trace, "\n"))
			require.True(t, sound.Verdict == Exclusive || searchLimit < DefaultStates)
			if sound.Verdict == Exclusive {
				proved.Store(bug.world.name, true)
			}
		})
	}
}

func plantedBugs() []planted {
	in := func(text ...string) setting {
		all := strings.Join(text, "\n")
		return setting{all, func() *Model { return world(all) }}
	}
	twoL := in("ticks=10", "a legacy turns=2", "b legacy turns=2")
	twoM := in("ticks=9", "m modern delay=2 renew=1", "n modern delay=2 renew=1")
	lateM := in("ticks=9", "m modern delay=unbounded", "n modern delay=unbounded", "o modern")
	twoB := in("ticks=9", "x bridge delay=1 renew=1", "y bridge delay=1 renew=1")
	settling := in("ticks=10 left-behind=2", "a legacy getset-late=1", "x bridge settle=2 lease=6 grace=1")
	renewing := in("ticks=11 left-behind=3", "a legacy early=2", "b legacy early=2 getset-late=2", "x bridge grace=2 renew=1")
	// The waiter asks often, so that a grant for its former place may be read soon after it has another.
	earlier := in("ticks=10 messages", "m modern queue lease=4 claim=4 turns=2", "n modern queue lease=4 claim=4")
	claim := func(id string) setting { return setting{id, func() *Model { return claimNamed(id).Model }} }
	return []planted{
		// The old scheme's clients.
		{"legacy-no-recheck-after-getset", claim("A-takeover"), step(func(_ *model.Session, sent *protocol.Command, heard protocol.Reply, next protocol.Step) protocol.Step {
			if sent.Op == protocol.GetSet && heard.Kind == protocol.Text {
				return protocol.Step{Kind: protocol.Done, Verdict: protocol.Acquired}
			}
			return next
		})},
		{"legacy-set-instead-of-setnx", twoL, swap(protocol.SetNX, protocol.GetSet, always(protocol.Reply{Kind: protocol.Integer, Int: 1}))},
		{"legacy-expiry-without-the-lease", twoL, reword(func(d *protocol.Dialect) { d.Extra = -30 })},
		{"legacy-at-or-before", in("ticks=9", "a legacy dialect=unix-ns", "b legacy dialect=unix-ns"), reword(func(d *protocol.Dialect) { d.AtOrBefore = true })},
		{"legacy-commit-without-watch", claim("K-takeover"), swap(protocol.Watch, protocol.Unwatch, nil)},
		{"legacy-own-value-counts-as-expired", claim("A-takeover"), func(m *Model) {
			reword(func(d *protocol.Dialect) { d.Layout, d.MineExpires = protocol.UUIDColonNumber, true })(m)
			assign("2", m.fields()["left-behind"])
		}},
		{"go-release-without-compare", claim("release-compare"), swap(protocol.CompareDel, protocol.Del, nil)},
		{"go-release-not-smaller", claim("release-compare"), each(func(c *Client) {
			if c.Scheme == model.GoLegacy {
				c.Member.Release = protocol.ReleaseNotSmaller
			}
		})},
		{"go-no-deadline", in("ticks=9", "a go-legacy release=compare overrun=3", "b go-legacy release=compare overrun=3"), each(func(c *Client) { c.Scheme = model.Legacy })},
		{"go-steals-what-it-cannot-read", in("ticks=9", "a go-legacy dialect=jedis-uuid", "m modern plain"), each(func(c *Client) {
			if c.Scheme == model.GoLegacy {
				c.Scheme = model.Legacy
			}
		})},
		{"go-renewal-without-compare", in("ticks=9", "a go-legacy release=compare renew=2 compare-set-late=unbounded", "b legacy", "c legacy once from=5"), override(protocol.CompareSet, model.BlindSet)},
		{"stage-check-skipped", in("ticks=10 left-behind=0", "a go-legacy release=compare getset-late=unbounded until=1", "b legacy from=6 once",
			"x bridge from=2 lease=8 grace=1 settle=1"), each(func(c *Client) { c.NotAfter = 0 })},

		// The record.
		{"record-command-without-a-bound", claim("LB-set-lag-late"), sends(func(c *protocol.Command) { c.NotAfter = 0 })},
		{"record-correction-at-once", claim("LB-set-lag"), func(m *Model) { m.AtOnce = true }},
		{"record-follows-with-an-attempt-under-way", claim("LB-set-lag"), each(func(c *Client) { c.Hasty = true })},
		{"record-lock-renewed-as-it-was-taken", claim("LLB-set-shortest"), each(func(c *Client) { c.AsTaken = true })},

		// The bridge.
		{"bridge-no-grace", claim("LB-behind-grace"), each(func(c *Client) { c.Grace = 0 })},
		{"bridge-no-settle", settling, each(func(c *Client) { c.Settle = 0 })},
		{"bridge-settle-too-short", in("ticks=10 left-behind=3", "a legacy getset-late=2", "x bridge settle=3 lease=6 grace=2"), each(func(c *Client) { c.Settle = ticks(1) })},
		{"bridge-settle-ignores-what-it-finds", settling, code(protocol.BridgeSettle, protocol.SettleLeft, protocol.SettleDone)},
		{"bridge-settle-ignores-a-lost-guard", in("ticks=10 left-behind=2", "x bridge settle=2", "y bridge settle=2"), code(protocol.BridgeSettle, protocol.SettleLost, protocol.SettleDone)},
		{"bridge-puts-back-after-a-pause", claim("LLB-withdraw-paused"), each(func(c *Client) { c.PutBacks = 3 })},
		{"bridge-no-guard", in("ticks=9 only=bridge+bridge", "a legacy stale-del", "x bridge settle=1", "y bridge settle=1"), each(func(c *Client) { c.NoGuard = true })},
		{"bridge-truthful-value", claim("LB-ahead"), each(func(c *Client) { c.Truthful = true })},
		{"bridge-value-not-far-enough", claim("LB-ahead"), value("1700000000050")},
		{"bridge-value-not-wrapped", claim("LB-uuid"), value("6000000000000000001")},
		{"bridge-value-with-the-readers-own-id", claim("LB-uuid"), value(owner("a") + ":6000000000000000001")},
		{"bridge-takes-what-is-held", twoB, code(protocol.BridgeTake, protocol.TakeHeld, protocol.TakeFree)},
		{"bridge-renewal-ignores-displacement", renewing, code(protocol.BridgeExtend, protocol.RenewTheirs, protocol.RenewDone)},
		{"bridge-renewal-by-the-wrong-owner", in("ticks=10", "x bridge bridge-extend-late=3 renew=2", "y bridge bridge-extend-late=3 renew=2"), code(protocol.BridgeExtend, protocol.RenewLost, protocol.RenewDone)},
		{"bridge-no-renewal", renewing, each(func(c *Client) { c.Renew = 0 })},
		{"bridge-release-without-compare", in("ticks=9", "x bridge delay=unbounded", "m modern delay=1", "n modern delay=1"), swap(protocol.BridgeDrop, protocol.Del, always(protocol.Reply{Kind: protocol.Integer, Int: protocol.DropDone}))},
		{"bridge-validity-from-the-reply", claim("BB-late-reply"), each(func(c *Client) { c.FromReply = true })},
		{"bridge-no-deadline", claim("BB-late-reply"), each(func(c *Client) { c.NoDeadline = true })},

		// Token locks.
		{"modern-release-without-compare", lateM, swap(protocol.CompareDel, protocol.Del, nil)},
		{"bridge-gaps-of-three", claim("BB-yield-idle"), sends(func(c *protocol.Command) { c.Gap *= 3 })},
		{"modern-set-without-nx", twoM, swap(protocol.SetToken, protocol.GetSet, always(protocol.Reply{Kind: protocol.Text, Text: "OK"}))},
		{"modern-takes-what-is-held", claim("LM-queue-ahead"), swap(protocol.SetToken, protocol.GetSet, always(protocol.Reply{Kind: protocol.Text, Text: "OK"}))},
		{"modern-renewal-by-the-wrong-owner", in("ticks=10", "m modern extend-late=3 renew=2", "n modern extend-late=3 renew=2"), code(protocol.Extend, 0, 1)},
		{"modern-validity-from-the-reply", claim("MM-late-reply"), each(func(c *Client) { c.FromReply = true })},
		{"modern-no-deadline", claim("MM-late-reply"), each(func(c *Client) { c.NoDeadline = true })},
		{"modern-unknown-is-acquired", claim("MM-silent"), step(func(s *model.Session, sent *protocol.Command, heard protocol.Reply, next protocol.Step) protocol.Step {
			if heard.Kind == protocol.Silence && s.Phase == model.Acquiring {
				return protocol.Step{Kind: protocol.Done, Verdict: protocol.Acquired}
			}
			return next
		})},
		{"modern-unknown-renewal-is-renewed", in("ticks=10 silences=1", "m modern renew=2 delay=1", "n modern delay=1"), step(func(s *model.Session, sent *protocol.Command, heard protocol.Reply, next protocol.Step) protocol.Step {
			if heard.Kind == protocol.Silence && s.Phase == model.Renewing {
				return protocol.Step{Kind: protocol.Done, Verdict: protocol.Renewed}
			}
			return next
		})},
		{"modern-expiry-by-the-clients-clock", in("ticks=9", "m modern", "n modern"), sends(func(c *protocol.Command) {
			if c.Op == protocol.SetToken { // PXAT from a clock that is 20 ms behind the server's
				c.TTL -= 2 * standardTick
			}
		})},
		{"modern-fence-stands-still", claim("BM-fence"), mishears(func(sent *protocol.Command, heard *protocol.Reply) {
			if sent.Op == protocol.Take && heard.Int == 1 {
				heard.Int2 = int64(Epoch) / 1000
			}
		})},

		// Locks that are handed from one to the next.
		{"modern-grant-from-its-message", in("ticks=10 messages", "m modern queue lease=6 claim=6 turns=2", "n modern queue lease=6 claim=6"), each(func(c *Client) { c.FromReply = true })},
		{"modern-grant-for-a-full-lease", claim("MM-grant"), sends(func(c *protocol.Command) {
			c.Claim /= 4 // what the server keeps; the waiter believes in four times as much
		})},
		{"modern-grant-for-an-earlier-place", earlier, mishears(func(sent *protocol.Command, heard *protocol.Reply) {
			if heard.Kind == protocol.Granted {
				heard.Int2 = 0
			} else if sent.Op == protocol.Queue {
				heard.Int3 = 0
			}
		})},
		{"modern-release-grants-and-deletes", claim("MMM-grant"), override(protocol.QueueRelease, model.GrantAndDelete(model.QueueRelease))},
		{"modern-grant-to-one-taken-for-gone", claim("MMM-grant"), override(protocol.QueueRelease, model.TakeForGone(model.QueueRelease))},
		{"modern-grant-without-its-fencing-number", claim("MMM-grant-fence-mixed"), mishears(func(_ *protocol.Command, heard *protocol.Reply) {
			if heard.Kind == protocol.Granted {
				heard.Int = max(heard.Int, 1)
			}
		})},
		{"modern-claim-as-long-as-a-lease", claim("MMM-grant-time-dies"), each(func(c *Client) { c.Claim = c.Lease })},
		{"modern-wait-given-up-without-a-word", claim("MMM-grant-time-give-up"), step(func(_ *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
			if next.Command.Op == protocol.QueueRelease && next.Command.Channel != "" {
				return protocol.Step{Kind: protocol.Done, Verdict: protocol.Released}
			}
			return next
		})},
		{"modern-wait-given-up-but-not-its-place", claim("MMM-grant-time-give-up"), sends(func(c *protocol.Command) {
			if c.Op == protocol.QueueRelease {
				c.Channel = ""
			}
		})},

		// The same in the bridge.
		{"bridge-grant-from-its-message", in("ticks=10 messages", "x bridge queue lease=6 claim=6 turns=2", "y bridge queue lease=6 claim=6"), each(func(c *Client) { c.FromReply = true })},
		{"bridge-grant-for-a-full-lease", claim("BB-grant"), waiter(func(e *protocol.Entry) { e.Claim /= 4 })},
		{"bridge-grant-for-an-earlier-place", in("ticks=8 messages", "x bridge queue lease=4 claim=4 turns=2", "y bridge queue lease=4 claim=4"), mishears(func(_ *protocol.Command, heard *protocol.Reply) {
			if heard.Kind == protocol.Granted {
				heard.Int2 = 1
			} else if heard.Int4 != 0 {
				heard.Int4 = 1
			}
		})},
		{"bridge-grant-without-its-fencing-number", claim("BMM-grant-fence-mixed"), mishears(func(_ *protocol.Command, heard *protocol.Reply) {
			if heard.Kind == protocol.Granted {
				heard.Int = max(heard.Int, 1)
			}
		})},
		{"bridge-grant-without-the-guard", claim("LBB-grant-stale-del"), waiter(func(e *protocol.Entry) { e.Guarded = false })},
		{"bridge-grant-after-the-lease", claim("BB-grant-until"), waiter(func(e *protocol.Entry) { e.Until = 0 })},
		{"bridge-grant-after-the-lease-by-a-token-client", claim("BM-grant-until"), waiter(func(e *protocol.Entry) { e.Until = 0 })},
		{"bridge-hands-on-what-it-has-lost", claim("LBB-grant-displaced"), override(protocol.BridgeDrop, model.HandsOnRegardless)},
		{"bridge-release-grants-and-deletes", claim("LBB-grant"), override(protocol.BridgeDrop, model.GrantAndDelete(model.BridgeDrop))},
		{"bridge-grant-to-one-taken-for-gone", claim("BBB-grant"), override(protocol.BridgeDrop, model.TakeForGone(model.BridgeDrop))},
		{"bridge-claim-as-long-as-a-lease", claim("BBB-grant-time-dies"), each(func(c *Client) { c.Claim = c.Lease })},

		// Old code behind a sidecar.
		{"sidecar-del-without-compare", claim("SSM-stale-del"), swap(protocol.SidecarDel, protocol.Del, nil)},
		{"sidecar-no-guard", claim("LSB-stale-del"), each(func(c *Client) { c.NoGuard = true })},
		{"sidecar-no-settle", in("ticks=10 left-behind=2", "a legacy getset-late=1", "b sidecar settle=2 lease=6 grace=1"), each(func(c *Client) { c.Settle = 0 })},
		{"sidecar-no-grace", in("ticks=10", "a legacy ahead=-3", "b sidecar grace=3 settle=1"), each(func(c *Client) { c.Grace = 0 })},
		{"sidecar-with-another-clock", claim("SB-skew"), each(func(c *Client) { c.Host = ticks(2) })},
		{"sidecar-lease-by-the-servers-clock", in("ticks=10", "a sidecar ahead=-2", "m modern"), each(func(c *Client) { c.Host = ticks(-c.Ahead) })},
		{"sidecar-the-same-text-of-another-thread", claim("SSM-one-text"), override(protocol.SidecarTake, model.SameTextAgain)},

		{"sidecar-the-same-token-twice", claim("SSM-held-threads"), sends(func(c *protocol.Command) {
			if value := c.Value; c.Op == protocol.SidecarTake {
				c.Value = value[:len(value)-6] + "000000"
			}
		})},

		{"modern-beside-legacy-without-a-number", in("ticks=9", "a legacy dialect=redis-objects", "m modern"), each(func(c *Client) { c.Plain = true })},
	}
}

// The ways to plant a bug.

func each(change func(*Client)) func(*Model) {
	return func(m *Model) {
		for i := range m.Clients {
			change(&m.Clients[i])
		}
	}
}

// step plants a bug in what the machines want.
func step(f func(*model.Session, *protocol.Command, protocol.Reply, protocol.Step) protocol.Step) func(*Model) {
	return each(func(c *Client) { c.Mutation = &model.Mutation{Step: f} })
}

// sends changes the machines' commands.
func sends(change func(*protocol.Command)) func(*Model) {
	return step(func(_ *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
		change(&next.Command)
		return next
	})
}

// mishears plants a bug in what the machines hear.
func mishears(change func(sent *protocol.Command, heard *protocol.Reply)) func(*Model) {
	return each(func(c *Client) {
		c.Mutation = &model.Mutation{Reply: func(_ *model.Session, sent *protocol.Command, heard protocol.Reply) protocol.Reply {
			change(sent, &heard)
			return heard
		}}
	})
}

// override puts a bug into one of the server's scripts.
func override(op protocol.Op, by model.Operation) func(*Model) {
	return func(m *Model) { m.Overrides = map[protocol.Op]model.Operation{op: by} }
}

// swap sends one operation in place of another, and may change what comes back.
func swap(op, by protocol.Op, answer func(protocol.Reply) protocol.Reply) func(*Model) {
	return each(func(c *Client) {
		c.Mutation = &model.Mutation{
			Step: func(_ *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
				if next.Kind == protocol.Send && next.Command.Op == op {
					next.Command.Op = by
				}
				return next
			},
			Reply: func(_ *model.Session, sent *protocol.Command, heard protocol.Reply) protocol.Reply {
				if sent.Op == by && answer != nil {
					return answer(heard)
				}
				return heard
			},
		}
	})
}

func always(r protocol.Reply) func(protocol.Reply) protocol.Reply {
	return func(protocol.Reply) protocol.Reply { return r }
}

// code makes the machines take one answer of a script for another.
func code(op protocol.Op, is, heardAs int64) func(*Model) {
	return mishears(func(sent *protocol.Command, heard *protocol.Reply) {
		if sent.Op == op && heard.Kind == protocol.Integer && heard.Int == is {
			heard.Int = heardAs
		}
	})
}

// value makes the bridge write a value of its own choice.
func value(v string) func(*Model) {
	return step(func(s *model.Session, _ *protocol.Command, _ protocol.Reply, next protocol.Step) protocol.Step {
		if next.Kind == protocol.Send && s.Scheme == model.Bridge {
			next.Command.Value = v
		}
		return next
	})
}

// waiter changes how bridge clients stand in the queue.
func waiter(change func(*protocol.Entry)) func(*Model) {
	return sends(func(c *protocol.Command) {
		if e, ok := protocol.ParseEntry(c.Entry); ok {
			change(&e)
			c.Entry = e.String()
		}
	})
}

// reword changes the dialect of all clients.
func reword(change func(*protocol.Dialect)) func(*Model) {
	return func(m *Model) {
		d := *m.Clients[0].Dialect
		change(&d)
		each(func(c *Client) { c.Dialect = &d })(m)
	}
}
