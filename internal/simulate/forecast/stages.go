package forecast

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// stage is a fleet that is asked about: which of today's old clients are what.
type stage struct {
	name, what string
	becomes    model.Scheme
	share      float64 // of the old clients, those first that cause the most
}

// stages are today's fleet and those that it can become.
var stages = []stage{
	{"legacy", "the fleet as it was observed", model.Legacy, 0},
	{"bridge, half", "half of the old clients are bridge members, the worst first", model.Bridge, 0.5},
	{"bridge", "all old clients are bridge members", model.Bridge, 1},
	{"modern", "all clients hold token locks", model.Modern, 1},
	{"sidecar", "all old clients as they are, behind sidecars", model.Sidecar, 1},
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
	blamed := func(c int) float64 {
		if i := slices.IndexFunc(worst, func(w Share) bool { return w.Name == f.profile.Clients[c].Name }); i >= 0 {
			return worst[i].Mean
		}
		return 0
	}
	slices.SortStableFunc(old, func(a, b int) int {
		switch x, y := blamed(a), blamed(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return a - b
	})
	changed := old[:int(float64(len(old))*s.share+0.5)]
	var groups []group
	for _, g := range f.groups {
		made := g
		made.actors = slices.Clone(g.actors)
		for i := range made.actors {
			m := &made.actors[i].member
			if slices.Contains(changed, made.actors[i].client) || s.becomes == model.Modern && m.Scheme == model.Bridge {
				become(m, s.becomes)
			}
		}
		groups = append(groups, made)
	}
	return groups
}

// become makes a client a member of another scheme, with the habits that such members have.
func become(m *model.Member, scheme model.Scheme) {
	m.Scheme = scheme
	m.Fence = protocol.FenceKey(m.Key)
	if scheme == model.Sidecar {
		m.Behind, m.Queue, m.Renew, m.Settle, m.Grace = m.Name, false, m.Lease/3, settle, grace // the sidecar looks after the lock
		return
	}
	m.Queue, m.Renew, m.Poll = true, m.Lease/3, 100*time.Millisecond
	if scheme == model.Bridge {
		m.Settle, m.Grace, m.Yield = settle, grace, m.Poll*6/5
	}
}
