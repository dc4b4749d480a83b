package forecast

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// TestFromProfile: the scenario of a profile has the fleet that forecast speaks of. What it has in a day lies where forecast says; its
// members are package compat's at each stage; its text reads back; a client without a shared key and one of several threads are in it.
func TestFromProfile(t *testing.T) {
	measures(t)
	p := observed(0, 7000, 0)
	p.Clients = append(p.Clients, p.Clients[0], p.Clients[0])
	p.Clients[3].Name, p.Clients[3].AtOnce = "alone % 1", 2
	p.Clients[3].Uses = []profile.Use{p.Clients[0].Uses[0]}
	p.Clients[3].Uses[0].Own = profile.Own{Keys: 5, Acquired: 300}
	p.Clients[4].Name, p.Clients[4].Kind = "java-1", "unknown"
	for _, name := range StageNames() {
		s, notKnown, err := FromProfile(p, name, Failovers{})
		require.NoError(t, err, name)
		require.Len(t, s.Fleet.Clients, 5, "three that share a key, and two threads of one that shares none")
		assert.Contains(t, notKnown, "java-1 is left out: the simulator does not play clients of kind unknown")
		again, err := sim.Parse(s.Format())
		require.NoError(t, err, "%s\n%s", name, s.Format())
		assert.Equal(t, s.Fleet.Clients[1].Member, again.Fleet.Clients[1].Member, name)
		hours := redistest.Rounds(3, 24)
		s.Fleet.Until = time.Duration(hours) * time.Hour
		sum, who := sim.RunAll(&s.Fleet, 1, 1, nil), s.Fleet.Clients[0].Member
		switch name {
		case "legacy":
			if redistest.Wanted(redistest.Proofs) {
				f := made(t, observed(0, 7000, 0), Options{Span: 24 * time.Hour, Draws: 20, Commands: 1, Today: true})
				assert.InEpsilon(t, f.Stages[0].Count.Mean, sum.Overlaps, 0.25)
			}
		case "bridge", "modern":
			assert.Zero(t, sum.Overlaps)
			assert.Equal(t, model.CompatMember(who, protocol.MemberTerms{Shortest: 10 * time.Second}, name == "modern"), who)
		case "sidecar":
			assert.Zero(t, sum.Overlaps)
		}
		assert.InEpsilon(t, hours*(3*400+2*300), sum.Acquisitions, 0.5, "%s: each as often as it was seen to, about", name)
	}
	_, _, err := FromProfile(p, "elsewhere", Failovers{})
	assert.ErrorContains(t, err, "no stage is named")
	p.Clients = nil
	_, _, err = FromProfile(p, "legacy", Failovers{})
	assert.ErrorContains(t, err, "names no client that takes locks")
}

// TestMembersGoAlong: a member of today is played with the server's clock and renewals, and is at the stage of all members where the old clients are.
func TestMembersGoAlong(t *testing.T) {
	p := observed(0, 0)
	p.Clients[1].Name, p.Clients[1].Kind = "go", "member"
	terms := protocol.MemberTerms{Shortest: 10 * time.Second}
	for _, name := range StageNames() {
		s, notKnown, err := FromProfile(p, name, Failovers{})
		require.NoError(t, err, name)
		assert.NotContains(t, notKnown, "go", name)
		require.Len(t, s.Fleet.Clients, 2, name)
		who := s.Fleet.Clients[1].Member
		if name == "legacy" {
			assert.Equal(t, []any{model.GoLegacy, 10 * time.Second, 10 * time.Second / 3}, []any{who.Scheme, who.Lease, who.Renew})
			continue
		}
		assert.Equal(t, model.CompatMember(who, terms, name == "modern"), who, name)
	}
}

// TestFirstNumbersFirst: each stage is told before it is run, beside the numbers of those before it. The double holds of today's fleet are gone where all
// old clients are, and nearly where the one is whose clock is off. A stage in which nobody writes an expiry is looked at for less time; what other
// draws would change gets less with their number.
func TestFirstNumbersFirst(t *testing.T) {
	measures(t, redistest.Proofs)
	var told []string
	progress := func(made []Stage, next string, of int) {
		assert.Len(t, made, len(told))
		assert.Equal(t, len(StageNames()), of)
		told = append(told, next)
	}
	few := made(t, observed(0, 8000, 0), Options{Span: 24 * time.Hour, Draws: 20, Commands: 1, Progress: progress})
	assert.Equal(t, StageNames(), told)
	assert.Greater(t, few.Stages[0].Count.Low, 30.0)
	assert.Less(t, few.Stages[1].Count.High, few.Stages[0].Count.Low/10, "the clock that is off is a bridge member then")
	for _, s := range few.Stages[2:] {
		assert.Zero(t, s.Count, s.Name)
	}
	for _, s := range few.Stages[2:4] {
		assert.Less(t, s.Hours, few.Stages[0].Hours/2, s.Name)
	}
	o := Options{Span: 24 * time.Hour, Draws: 320, Commands: 1, Today: true, Progress: func(_ []Stage, _ string, of int) { assert.Equal(t, 1, of) }}
	many := made(t, observed(0, 8000, 0), o)
	assert.Positive(t, many.Stages[0].Moves)
	assert.Less(t, many.Stages[0].Moves, few.Stages[0].Moves)
}
