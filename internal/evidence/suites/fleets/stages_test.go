package fleets

import (
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// crew is members at work on one key, and what they said so far.
type crew struct {
	*holders.Crew
	store *stages.Store
}

func (c *crew) await(what string, condition func() bool) {
	c.T.Helper()
	redistest.Await(c.T, what, condition)
}

// newCrew makes a namespace at stage legacy on a server of its own, for members whose turns are recorded.
func newCrew(t *testing.T, dialect string) *crew {
	t.Helper()
	server := redistest.Real(t)
	c := &crew{
		Crew:  &holders.Crew{T: t, Key: "lock.crew", Record: server},
		store: &stages.Store{Pool: server.Pool(), Namespace: "crew", ReplyTimeout: 5 * time.Second},
	}
	require.NoError(t, c.store.Init(t.Context(), stages.Record{Stage: stages.Legacy, Patterns: []string{"lock.*"}, Dialect: dialect, Shortest: lease}))
	return c
}

// member joins the namespace over a server or a proxy.
func (c *crew) member(id, url string, more ...string) *holders.Holder {
	args := append([]string{"id=" + id, "namespace=crew", "book=" + c.Record.URL()}, more...)
	return c.Enlist(of("compat", args...).at(c.T, url)())
}

// old is an old client.
func (c *crew) old(kind holders.Kind) *holders.Holder {
	return c.Enlist(of(kind).at(c.T, c.Record.URL())())
}

// stopOutside stops a member's progress while it neither holds the lock nor is in the book: a holder
// that is stopped inside is inside for whoever counts, and only a fencing token helps against that.
func (c *crew) stopOutside(h *holders.Holder, stop, resume func(), others ...*holders.Holder) {
	c.T.Helper()
	for range 200 {
		stop()
		before := c.Count(others...)
		// If it held the lock, nobody else takes a turn until its TTL is over.
		for end := time.Now().Add(ttl / 2); time.Now().Before(end) && c.Count(others...) < before+2; {
			time.Sleep(time.Millisecond)
		}
		in, err := redis.Int(c.Record.Do("HEXISTS", c.Referee(), h.ID), nil)
		require.NoError(c.T, err)
		if c.Count(others...) >= before+2 && in == 0 {
			return
		}
		resume()
		time.Sleep(3 * time.Millisecond)
	}
	c.T.Fatal("the member was never outside")
}

// nameOf is what a member was called: its id without the part that is drawn when it starts.
func nameOf(id string) string {
	name, _, _ := strings.Cut(id, "/")
	return name
}

// silent waits until the lease of a member is over.
func (c *crew) silent(id string) {
	c.T.Helper()
	c.await(id+" falls silent", func() bool {
		view, err := c.store.Show(c.T.Context())
		require.NoError(c.T, err)
		for _, m := range view.Members {
			if nameOf(m.ID) == id {
				return m.Left < 0
			}
		}
		return false
	})
}

// move changes the stage and returns how long that took, and whom it waited for.
func (c *crew) move(to stages.Stage) (took time.Duration, waited map[string]bool) {
	c.T.Helper()
	ctx := redistest.Bounded(c.T, 40*time.Second)
	began, waited := time.Now(), map[string]bool{}
	mover := &stages.Mover{Store: c.store, Look: 20 * time.Millisecond}
	err := mover.Run(ctx, to, func(_ stages.View, blockers []stages.Blocker) {
		for _, b := range blockers {
			waited[nameOf(b.Member)+" "+b.Why] = true
		}
	})
	require.NoError(c.T, err)
	return time.Since(began), waited
}

// TestStageChangesUnderLoad (G6): forward, back, forward, complete, with Java beside the fleet as long
// as that is allowed, one member stopped past its lease and one cut off, whose commands all arrive late.
func TestStageChangesUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "jedis-ms")
	proxy := redistest.NewProxy(t, c.Record)
	paused, cut := c.member("paused", c.Record.URL()), c.member("cut", proxy.URL())
	a, b, java := c.member("a", c.Record.URL()), c.member("b", c.Record.URL()), c.old(holders.JedisLock)
	c.Progress(1, paused, cut, a, b, java)

	// Forward, with a member that is stopped: its lease, its longest lock and the slack must pass.
	c.stopOutside(paused, func() { paused.Signal(syscall.SIGSTOP) }, func() { paused.Signal(syscall.SIGCONT) }, a, b, cut, java)
	c.silent("paused")
	took, waited := c.move(stages.Bridge)
	t.Logf("legacy -> bridge in %v, waited for %v", took.Round(time.Millisecond), waited)
	assert.True(t, waited["paused silent"], "the stopped member was waited for")
	assert.GreaterOrEqual(t, took, lease-100*time.Millisecond, "and for its longest lock")
	c.Progress(3, a, b, java)
	paused.Signal(syscall.SIGCONT)
	c.Progress(1, paused, cut)

	// Back and forward again, at once and complete.
	took, _ = c.move(stages.Legacy)
	t.Logf("bridge -> legacy in %v", took.Round(time.Millisecond))
	assert.Less(t, took, 3*time.Second)
	c.More(20)
	c.move(stages.Bridge)
	c.Progress(1, paused, cut, a, b, java)

	// Java leaves; forward with a member that is cut off. Its commands arrive all the same, but late.
	c.Stop(java)
	heal := make(chan struct{})
	block := func() {
		gate := make(chan struct{})
		heal = gate
		proxy.Before(func([]string) { <-gate })
	}
	unblock := func() {
		proxy.Before(nil)
		close(heal)
	}
	c.stopOutside(cut, block, unblock, a, b, paused)
	c.silent("cut")
	took, waited = c.move(stages.Modern)
	t.Logf("bridge -> modern in %v, waited for %v", took.Round(time.Millisecond), waited)
	assert.True(t, waited["cut silent"], "the member that was cut off was waited for")
	c.Progress(3, a, b, paused)
	unblock()
	c.Progress(1, cut)

	// All the way back and forward once more.
	for _, to := range []stages.Stage{stages.Bridge, stages.Legacy, stages.Bridge, stages.Modern} {
		took, _ := c.move(to)
		t.Logf("to %v in %v", to, took.Round(time.Millisecond))
		if c.More(20); to != stages.Legacy {
			c.Progress(1, paused, cut, a, b)
		}
	}
	c.Stop(paused, cut, a, b)
	c.judge(paused.ID, cut.ID)
}

// judge wants no overlap, and no errors but those of members that were stopped or cut off.
func (c *crew) judge(stopped ...string) {
	c.T.Helper()
	report := c.Found()
	c.T.Log(report)
	assert.Zero(c.T, report.Overlaps, redistest.Violated)
	assert.Subset(c.T, stopped, slices.Collect(maps.Keys(report.Told)), "only the stopped members may have to be told")
	for _, e := range report.Errors {
		known := slices.ContainsFunc(told, func(words string) bool { return strings.Contains(e.Message, words) })
		assert.True(c.T, known, "%+v", e)
	}
}

// told are the errors of a member that was stopped or cut off; events of errors carry no name.
var told = []string{"lock lost", "outcome unknown", "i/o timeout", "the namespace does not allow it"}
