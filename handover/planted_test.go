package handover_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// plants are what would be wrong in a handover, each with the test that has to find it.
var plants = []struct {
	redistest.Plant
	found string // by this test
}{
	{redistest.Plant{Name: "a the holder's context is not ended with the lease", Files: map[string][]string{"handover/lock.go": {
		"k.lose(lockmigrate.ReasonDeadline, errors.New(", "_ = error(errors.New(",
	}}}, "TestTheLeaseEndsTheHolder"},
	{redistest.Plant{Name: "b a lock is handed out after the lease", Files: map[string][]string{"handover/acquire.go": {
		"	case err != nil:\n		return k.tooLate(", "	case false:\n		return k.tooLate(",
	}}}, "TestNothingAfterTheLease"},
	{redistest.Plant{Name: "c New before Old in one member", Files: map[string][]string{"handover/acquire.go": {
		"	if k.permit.Stage != stages.New {\n", "	if l.opts.Member == \"b\" && k.permit.Stage == stages.Both {\n		if k.new, err = by(l.opts.New, attempt, k.newKey); err != nil {\n			return k.failed(attempt, err)\n		}\n	}\n	if k.permit.Stage != stages.New {\n",
		"	if k.permit.Stage != stages.Old {\n", "	if k.permit.Stage != stages.Old && k.new == nil {\n",
	}}}, "TestOneOrder"},
	{redistest.Plant{Name: "d a member's range leaves out attempts under way", Files: map[string][]string{"internal/stages/gate.go": {
		"	g.inUse[Number(o.Stage)]++\n	g.acting++\n", "	g.acting++\n",
		"	g.inUse[used]--\n", "	if p.Kept {\n		g.inUse[used]--\n	}\n",
		"	p.Kept = true\n	g := p.gate\n	g.mu.Lock()\n	defer g.mu.Unlock()\n", "	p.Kept = true\n	g := p.gate\n	g.mu.Lock()\n	defer g.mu.Unlock()\n	g.inUse[Number(p.Stage)]++\n",
	}}}, "TestAnAttemptUnderWayIsInTheWay"},
	{redistest.Plant{Name: "e a move counts a silent member as gone before its lease is over", Files: map[string][]string{"internal/redis/scripts/stage_shared.lua": {
		"  return member.ends + member.longest + slack_ms\n", "  return member.seen + slack_ms\n",
	}}}, "TestASilentMemberIsWaitedFor"},
	{redistest.Plant{Name: "f two members with different halves", Files: map[string][]string{"internal/stages/halves.go": {
		"		if !same {\n", "		if same && !same {\n",
	}}}, "TestOtherHalvesAreUnfit"},
	{redistest.Plant{Name: "g a waiter keeps Old while the stage moves to new, and is handed New as well", Files: map[string][]string{"handover/acquire.go": {
		"	attempt, end := l.gate.During(ctx, &k.permit)\n", "	attempt, end := ctx, func(error) {}\n",
		"	case errors.Is(err, stages.ErrChanged):\n		return err\n", "	case errors.Is(err, stages.ErrChanged):\n		taken = true\n		return nil\n",
	}}}, "TestWaitersFollowTheStage"},
}

// TestPlantsFit: each fault still has its place, and its test.
func TestPlantsFit(t *testing.T) {
	source, err := os.ReadFile("handover_test.go")
	assert.NoError(t, err)
	for _, p := range plants {
		p.Fits(t)
		assert.Contains(t, string(source), "func "+p.found+"(t *testing.T)", p.Name)
	}
}

// TestPlanted puts each fault into the shipped source in turn, and wants its test to fail, in virtual time.
func TestPlanted(t *testing.T) {
	redistest.Need(t, redistest.Proofs)
	redistest.Unraced(t)
	for _, p := range plants {
		t.Run(p.Name, func(t *testing.T) {
			built := p.Build(t)
			out, err := exec.Command(built, "-test.run", "^"+p.found+"$", "-test.timeout", "30s").CombinedOutput()
			var failed *exec.ExitError
			assert.ErrorAs(t, err, &failed, "%s does not find it", p.found)
			assert.Contains(t, string(out), "--- FAIL: "+p.found, "found in another way")
		})
	}
}
