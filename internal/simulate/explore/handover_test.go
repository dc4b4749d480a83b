package explore

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHandoverClaimsReach: the claims of a whole way would hold of a fleet that never moved, so the search must have seen holders of each stage under
// a record of each neighbour, attempts that were given back because the stage had moved, and leases that were refused or over.
func TestHandoverClaimsReach(t *testing.T) {
	for _, id := range []string{"HH-forth", "HH-back"} {
		m := claimNamed(id).Model
		s := newSearch(m, 300_000)
		o := s.run(context.Background())
		require.False(t, o.Violated)
		seen := map[string]bool{}
		for n := range s.nodes {
			record := stageNames[s.nodes[n].over&3]
			for i := range m.Clients {
				a := s.tables.actors[i].at(s.nodes[n].actors[i])
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
