package explore

import (
	"fmt"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// releaseClaims: the ways to give a key back, when the commands of a release come after the lease.
func releaseClaims() []Claim {
	L := legacyClient
	stale := func(r protocol.Release, more ...option) *Model {
		return world(10, L("a", append(more, staleDel, release(r))...), L("b"), L("c"))
	}
	compared := release(protocol.ReleaseCompare)
	return []Claim{
		{"release-blind", "L L L", "DEL, whatever is there; late", Violated, 0, stale(protocol.ReleaseBlind)},
		{"release-unexpired", "L L L", "DEL if the own lease is unexpired when the release begins; late", Violated, 0, stale(protocol.ReleaseUnexpired)},
		{"release-mine", "L L L", "GET, then DEL if the value is the own one; late", Violated, 0, stale(protocol.ReleaseMine)},
		{"release-not-smaller", "L L L", "GET, then DEL if the number is not smaller than the own one; late", Violated, 0, stale(protocol.ReleaseNotSmaller)},
		{"release-compare", "L L L", "compare and delete in one script; late", Exclusive, 0, stale(protocol.ReleaseCompare, goLegacy)},
		{"go-legacy", "L L L", "a Go client among old ones: compare and delete, its own deadline, late", Exclusive, 0,
			world(9, L("a", goLegacy, staleDel, release(protocol.ReleaseCompare)), L("b", goLegacy, staleDel, release(protocol.ReleaseCompare)), L("c"))},
		{"go-legacy-silent", "L L", "a Go client renews, late, and two replies are lost: it goes by both values", Exclusive, 0,
			world(9, L("a", goLegacy, renew(1), once, delayOf(protocol.CompareSet, 1), compared), L("b", goLegacy, once, compared)).silences(3)},
	}
}

// dialectClaims: every dialect's win rule, with agreeing clocks, and what its reader makes of a
// bridge value.
func dialectClaims() []Claim {
	var claims []Claim
	for _, d := range protocol.Dialects() {
		in := dialect(d)
		name := func(what string) string { return fmt.Sprintf("%s-%s", d.Letter, what) }
		claims = append(claims,
			Claim{name("agree"), "L L", d.Name + ": clocks agree, no overrun, no delay", agreeing(d), 0,
				inUnit(d, world(10, legacyClient("a", in, turns(2)), legacyClient("b", in, turns(2))))},
			Claim{name("takeover"), "L L", d.Name + ": both find the value of a crashed holder, no delay", taking(d), 0,
				inUnit(d, world(8, legacyClient("a", in), legacyClient("b", in))).leftBehind(2)},
			Claim{name("late-takeover"), "L L", d.Name + ": both find the value of a crashed holder, commands up to 5 late: a written expiry may be past already", Violated, 0,
				inUnit(d, world(14, legacyClient("a", in, delay(5)), legacyClient("b", in, delay(5)))).leftBehind(2)},
			Claim{name("bridge"), "L B", d.Name + ": beside a bridge, legacy clock ahead, grace 1, renewal", Exclusive, 0,
				inUnit(d, world(10, legacyClient("a", in, ahead(5)), bridgeClient("x", in, grace(1), settle(2), renew(1))))},
		)
	}
	return append(claims,
		Claim{"unit-mismatch", "L L", "milliseconds beside seconds", Violated, 8, mixedUnits(model.Legacy)},
		Claim{"unit-mismatch-bridge", "L B", "seconds beside a bridge that was told milliseconds: foreign, so held", Exclusive, 0, mixedUnits(model.Bridge)},
	)
}

// agreeing is what a dialect is worth when clocks agree and nothing is late. Three of them break by
// themselves: a client of jedis-uuid takes its own clobber for expired and wins with it; sec-pid-thread
// and unix-ns compute an expiry once and may write it when it is past.
func agreeing(d *protocol.Dialect) Verdict {
	if d.MineExpires || d.Writes == protocol.OnceForAll {
		return Violated
	}
	return Exclusive
}

// taking is the same for two clients that find the value of a crashed holder, and take one turn each.
func taking(d *protocol.Dialect) Verdict {
	if d.MineExpires {
		return Violated
	}
	return Exclusive
}

// inUnit stretches a model's ticks to ten of the dialect's units, where those are longer.
func inUnit(d *protocol.Dialect, m *Model) *Model {
	if d.Unit == protocol.Seconds || d.Unit == protocol.FloatSeconds {
		m.stretch(1000)
	}
	return m
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

// mixedUnits puts a client of milliseconds on a key with one of seconds.
func mixedUnits(scheme model.Scheme) *Model {
	m := world(10, legacyClient("a", dialect(protocol.RedisDoc)), client(scheme, "b", []option{settle(2)}))
	m.stretch(1000)
	m.Opening = []model.Entry{}
	return m
}
