package explore

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

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
		Search(ctx, c.Model, Limits{States: searchLimit})
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
		pause, ok := s.tables.servers[n.server].store.Look(now, protocol.ShareKey(key))
		if until, _ := strconv.ParseInt(pause.Value, 10, 64); ok && until > int64(now)/1e6 && s.inside(n, 0) {
			met++
		}
	}
	t.Logf("%d of %d states", met, len(s.nodes))
	require.Positive(t, met)
}
