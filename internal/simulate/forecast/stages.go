package forecast

import (
	"cmp"
	"slices"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// stage is a fleet that is asked about: which of today's old clients are what.
type stage struct {
	name, what string
	becomes    func(model.Member, protocol.MemberTerms) model.Member // what the old clients are; nil: as they are
	share      float64                                               // of the old clients, those first that cause the most
	alone      bool                                                  // the members of today are at stage modern too
}

// stages are today's fleet and those that it can become.
var stages = []stage{
	{"legacy", "the fleet as it was observed", nil, 0, false},
	{"bridge, half", "half of the old clients are bridge members, the worst first", atBridge, 0.5, false},
	{"bridge", "all old clients are bridge members", atBridge, 1, false},
	{"modern", "all clients hold token locks", atModern, 1, true},
	{"sidecar", "all old clients as they are, behind sidecars", model.BehindSidecar, 1, false},
}

func atBridge(m model.Member, t protocol.MemberTerms) model.Member {
	return model.CompatMember(m, t, false)
}

func atModern(m model.Member, t protocol.MemberTerms) model.Member {
	return model.CompatMember(m, t, true)
}

// of puts the stage's clients in the place of today's.
func (s stage) of(f *fleet, worst []Share) []group {
	var old []int
	for _, g := range f.groups {
		for _, a := range g.actors {
			if a.member.Scheme == model.Legacy && !slices.Contains(old, a.client) {
				old = append(old, a.client)
			}
		}
	}
	blamed := map[string]float64{}
	for _, w := range worst {
		blamed[w.Name] = w.Mean
	}
	by := func(c int) float64 { return blamed[f.profile.Clients[c].Name] }
	slices.SortStableFunc(old, func(a, b int) int { return cmp.Or(cmp.Compare(by(b), by(a)), a-b) })
	changed := old[:int(float64(len(old))*s.share+0.5)]
	var groups []group
	for _, g := range f.groups {
		made := g
		made.actors = slices.Clone(g.actors)
		for i := range made.actors {
			a := &made.actors[i]
			switch terms := (protocol.MemberTerms{Shortest: g.shortest}); {
			case s.becomes == nil:
			case slices.Contains(changed, a.client):
				a.member = s.becomes(a.member, terms)
			case a.member.Scheme == model.GoLegacy: // a member goes along
				a.member = model.CompatMember(a.member, terms, s.alone)
			}
			a.member.Alone = a.member.Alone || s.alone && a.member.Scheme == model.Bridge
		}
		groups = append(groups, made)
	}
	return groups
}
