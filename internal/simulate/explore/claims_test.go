package explore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// searchLimit keeps the tests short: larger searches are left out without the component proofs, and where every memory access is watched.
// scripts/test runs them all to their ends without the race detector: the detector wants them begun, beside each other.
var searchLimit = func() int {
	if redistest.Thorough() {
		return DefaultStates
	}
	return 5_000
}()

// parallel lets small searches run side by side. Large ones need gigabytes each.
func parallel(t *testing.T) {
	if searchLimit < DefaultStates {
		t.Parallel()
	}
}

func claimNamed(id string) Claim {
	all := Claims()
	return all[slices.IndexFunc(all, func(c Claim) bool { return c.ID == id })]
}

// TestClaims checks the whole table. A search that meets a lower limit than the usual one proves nothing, and is left out.
func TestClaims(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Claims() {
		require.False(t, seen[c.ID], "two claims are named %s", c.ID)
		seen[c.ID] = true
		t.Run(c.ID, func(t *testing.T) {
			parallel(t)
			f := Finding{c, Search(context.Background(), c.Model, searchLimit)}
			if f.Verdict == Incomplete && searchLimit < DefaultStates {
				t.Skipf("left out: more than %d states; `make test` proves it (LOCKMIGRATE_SUITES=proofs)", searchLimit)
			}
			t.Logf("%s: %s, %d states, depth %d, %d commands", f.Assumptions, f.Verdict, f.States, f.Depth, f.Ran)
			require.True(t, f.AsExpected(), "expected %s, found %s with %d commands:\n%s", f.Expected, f.Verdict, f.Ran, strings.Join(f.Trace, "\n"))
			if f.Verdict == Exclusive {
				proved.Store(c.ID, true)
			}
		})
	}
}

// TestAClaimStandsAlone: a report has only some of the claims, so one that builds on another names it.
func TestAClaimStandsAlone(t *testing.T) {
	all := Claims()
	for _, c := range all {
		assert.NotContains(t, c.Assumptions, "the same", c.ID)
		if base, named := strings.CutPrefix(c.Assumptions, "as "); named {
			base = strings.TrimRight(strings.Fields(base)[0], ",;")
			assert.True(t, slices.ContainsFunc(all, func(other Claim) bool { return other.ID == base && base != c.ID }), "%s names %s", c.ID, base)
		}
	}
}

func TestSearchStopsAtItsLimit(t *testing.T) {
	c := Claims()[0]
	require.Equal(t, Incomplete, Search(context.Background(), c.Model, 1000).Verdict)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	require.Equal(t, Incomplete, Search(cancelled, c.Model, DefaultStates).Verdict)
}

// BenchmarkStates searches a claim of three clients to its end: distinct states a second.
func BenchmarkStates(b *testing.B) {
	states, m := 0, claimNamed("LBB-stale-del").Model
	for b.Loop() {
		states += Search(context.Background(), m, DefaultStates).States
	}
	b.ReportMetric(float64(states)/b.Elapsed().Seconds(), "states/s")
}

// TestExpiredKeysStayGone: the search is breadth first in steps, not in ticks, so a server whose key has expired at tick 7
// may be found before another run meets an equal one, at tick 5.
func TestExpiredKeysStayGone(t *testing.T) {
	m := world("ticks=10\nm modern")
	tables := newTables(m)
	held := server{}
	held.store.Put(model.Entry{Key: key, Value: "token", ExpireMS: int64(m.serverClock(6)) / 1e6})
	expired := tables.server(&held, 7)
	require.Equal(t, expired, tables.server(&server{}, 5))
	get := tables.command(&protocol.Command{Op: protocol.Get, Key: key})
	require.Equal(t, protocol.Nil, tables.replies.all[tables.executed(expired, get, 0, 0, 0, 5).reply].Kind)
}

// TestCommandsAreToldApart: a number stands for all that a client may say differently from one time to the next.
func TestCommandsAreToldApart(t *testing.T) {
	tables := newTables(world("ticks=10\nx bridge"))
	seen := map[uint32]bool{}
	for _, c := range []protocol.Command{
		{Op: protocol.BridgeTake}, {Op: protocol.BridgeTake, Stood: "y"}, {Op: protocol.BridgeTake, Entry: "x"},
		{Op: protocol.BridgeSettle},
		{Op: protocol.BridgeTake, Grace: 1}, {Op: protocol.BridgeTake, NotAfter: 1},
		{Op: protocol.QueueRelease}, {Op: protocol.QueueRelease, Channel: "m"}, {Op: protocol.QueueRelease, Channel: "m", Claim: 1},
	} {
		id := tables.command(&c)
		require.False(t, seen[id], "%+v", c)
		seen[id] = true
	}
}

// TestRepliesAreToldApart: what is on its way to a client is a part of its state, with each of its numbers.
func TestRepliesAreToldApart(t *testing.T) {
	tables := newTables(world("ticks=10\nx bridge"))
	seen := map[uint32]bool{}
	for _, r := range []protocol.Reply{{}, {Int: 1}, {Int2: 1}, {Int3: 1}, {Int4: 1}, {Text: "x"}, {Kind: protocol.Text}} {
		id := tables.actor(0, &actor{session: model.NewSession(0, &tables.model.Clients[0].Member), heard: true, reply: r})
		require.False(t, seen[id], "%+v", r)
		seen[id] = true
	}
}

// TestRenewalsAreToldApart: a renewal under way keeps the bound with which it began, whatever its member has heard since.
func TestRenewalsAreToldApart(t *testing.T) {
	m := world("ticks=10\nx bridge")
	states := map[string]bool{}
	for _, until := range []protocol.Instant{Epoch, Epoch + 1} {
		s := model.NewSession(0, &m.Clients[0].Member)
		s.Acquire(model.Reading{})
		s.Next(model.Reading{}, protocol.Reply{Kind: protocol.Integer, Int: protocol.TakeFree})
		s.Obey(s.Member, until)
		require.Equal(t, until, s.Renew(model.Reading{}).Command.NotAfter)
		s.Obey(s.Member, Epoch+2)
		states[string(s.AppendState(nil))] = true
	}
	require.Len(t, states, 2)
}

// TestHandoverClaimsReach: the claims of a whole way would hold of a fleet that never moved, so the search must have seen holders of each stage under
// a record of each neighbour, attempts that were given back because the stage had moved, and leases that were refused or over.
func TestHandoverClaimsReach(t *testing.T) {
	redistest.Need(t, redistest.Proofs)
	for _, id := range []string{"HH-forth", "HH-back"} {
		m := claimNamed(id).Model
		s := newSearch(m, 300_000)
		o := s.run(context.Background())
		require.NotEqual(t, Violated, o.Verdict)
		seen := map[string]bool{}
		for n := range s.nodes {
			record := stageNames[s.nodes[n].over&3]
			for i := range m.Clients {
				a := s.tables.actors[i].all[s.nodes[n].actors[i]]
				h := &a.hand
				switch {
				case h.doing == holdsIt && int(s.nodes[n].tick) < m.insideHand(&m.Clients[i], a):
					seen[fmt.Sprintf("holds %s under %s", stageNames[h.stage], record)] = true
				case h.doing == holdsIt && int(s.nodes[n].tick) >= h.until:
					seen["holds after the lease"] = true
				case h.doing == gives && h.epoch != h.follows:
					seen["gives back what it began before"] = true
				}
				seen["a member is two stages behind"] = seen["a member is two stages behind"] || s.nodes[n].over>>2 == 2 && h.doing == nothing && h.epoch == 0 && h.follows == 0 && h.entry.ends > 0
			}
		}
		for _, want := range []string{
			"holds old under old", "holds old under both", "holds both under old", "holds both under both", "holds both under new", "holds new under both", "holds new under new",
			"holds after the lease", "gives back what it began before", "a member is two stages behind",
		} {
			if id == "HH-forth" && want == "holds both under old" || id == "HH-back" && want == "holds both under new" {
				continue // that is the other direction
			}
			if id == "HH-forth" && want == "holds new under both" || id == "HH-back" && want == "holds old under both" {
				continue
			}
			assert.True(t, seen[want], "%s: %s", id, want)
		}
		assert.False(t, seen["holds old under new"] || seen["holds new under old"], "%s: %v", id, seen)
	}
}

// TestGrantsAreMet: a claim about grants says something only if its search meets them: believed, doubted because they
// come late or are for an earlier place, and given back by a waiter that had given up.
func TestGrantsAreMet(t *testing.T) {
	for _, id := range []string{"MM-grant", "MM-grant-again", "MMM-grant", "BB-grant", "BB-grant-again", "BBB-grant", "BM-grant"} {
		c := claimNamed(id)
		var believed, doubted, gaveBack, passedOn int
		ctx, met := context.WithCancel(t.Context())
		step(func(s *model.Session, sent *protocol.Command, heard protocol.Reply, next protocol.Step) protocol.Step {
			switch {
			case heard.Kind == protocol.Granted && next.Verdict == protocol.Acquired:
				believed++
			case heard.Kind == protocol.Granted && next.Kind == protocol.Send:
				doubted++
			case sent.Op == protocol.BridgeDrop && sent.Entry != "" && heard.Int > 0:
				gaveBack++
			case sent.Op == protocol.QueueRelease && sent.Channel != "" && heard.Int > 0:
				gaveBack++
				if heard.Int == 2 {
					passedOn++
				}
			}
			if believed > 0 && doubted > 0 && gaveBack > 0 && (passedOn > 0 || c.ID != "MMM-grant") {
				met()
			}
			return next
		})(c.Model)
		Search(ctx, c.Model, searchLimit)
		met()
		t.Logf("%s: %d states of clients believed a grant, %d doubted one, %d gave one back, %d to the next", c.ID, believed, doubted, gaveBack, passedOn)
		require.Positive(t, believed, c.ID)
		require.Positive(t, doubted, c.ID)
		require.Positive(t, gaveBack, c.ID)
		if c.ID == "MMM-grant" {
			require.Positive(t, passedOn, c.ID)
		}
	}
}

// TestShareIsMet: the search of the claim about the share sees the legacy client inside while the key is left to it.
func TestShareIsMet(t *testing.T) {
	redistest.Need(t, redistest.Proofs)
	redistest.Unraced(t)
	m := claimNamed("LMM-grant-share").Model
	s := newSearch(m, DefaultStates)
	s.run(context.Background())
	met := 0
	for i := range s.nodes {
		n := &s.nodes[i]
		now := m.serverClock(Ticks(n.tick))
		pause, ok := s.tables.servers.all[n.server].store.Look(now, protocol.ShareKey(key))
		if until, _ := strconv.ParseInt(pause.Value, 10, 64); ok && until > int64(now)/1e6 && s.inside(n, 0) {
			met++
		}
	}
	t.Logf("%d of %d states", met, len(s.nodes))
	require.Positive(t, met)
}
