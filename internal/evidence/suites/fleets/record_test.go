package fleets

import (
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestRecordChangesUnderLoad corrects the record again and again while Go members and old clients of Java or Python work on one
// key, at both stages that they share. Holders of each kind are killed inside, and a member is stopped across a correction.
// Nobody is ever inside beside another. Every member takes each correction over, and the next stage waits for the one that
// has not.
func TestRecordChangesUnderLoad(t *testing.T) {
	t.Parallel()
	for dialect, kind := range map[string]holders.Kind{"jedis-ms": holders.JedisLock, "redispy-float": holders.RedisPy} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			changeUnderLoad(t, dialect, kind)
		})
	}
}

// killInside kills a holder that is inside, and takes it out of the referee's book.
func (c *crew) killInside(h *holders.Holder) {
	c.T.Helper()
	c.await(h.ID+" is inside", func() bool { return c.Catch(c.Record, h) })
	c.Record.Do("HDEL", c.Referee(), h.ID) // nobody comes in before its lease is over; the end of a JVM may take longer
	h.Kill()
}

func changeUnderLoad(t *testing.T, dialect string, kind holders.Kind) {
	c := newCrew(t, dialect)
	member := func(id string) *holders.Holder { return c.member(id, c.Record.URL(), "figures=record") }
	a, b, paused, old := member("a"), member("b"), member("paused"), c.old(kind)
	all := []*holders.Holder{a, b, paused, old}
	c.Progress(1, all...)

	changes := map[string]func(*stages.Record){
		"more careful": func(r *stages.Record) {
			r.ClockLag, r.CommandDelay, r.Shortest, r.Yield = 3*time.Second, 400*time.Millisecond, lease-500*time.Millisecond, 300*time.Millisecond
		},
		"less careful": func(r *stages.Record) {
			r.ClockLag, r.CommandDelay, r.Shortest, r.Yield = time.Second, 100*time.Millisecond, lease, 120*time.Millisecond
		},
		"more keys": func(r *stages.Record) { r.Patterns = append(slices.Clone(r.Patterns), r.Stage.String()+".*") },
	}
	correct := func(what string) (epoch int64) {
		t.Helper()
		view, err := c.store.Show(t.Context())
		require.NoError(t, err)
		to := view.Record
		changes[what](&to)
		blockers, err := c.store.Set(t.Context(), view.Record.Epoch, view.Record, to, true)
		require.NoError(t, err, what)
		require.Empty(t, blockers, what)
		return view.Record.Epoch + 1
	}
	follow := func(what string, epoch int64, ids ...string) {
		t.Helper()
		c.await(what+": members follow", func() bool {
			view, err := c.store.Show(t.Context())
			require.NoError(t, err)
			n := 0
			for _, m := range view.Members {
				if m.Epoch == epoch && slices.Contains(ids, nameOf(m.ID)) {
					n++
				}
			}
			return n == len(ids)
		})
	}
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge} {
		progress := func() { c.Progress(1, all...) }
		if stage == stages.Legacy {
			progress = func() { c.More(20) }
		}
		for _, what := range slices.Sorted(maps.Keys(changes)) {
			follow(what, correct(what), "a", "b", "paused")
			progress()
		}
		epoch := correct("more careful")
		victim := member("victim-" + stage.String())
		c.killInside(victim)
		c.killInside(old)
		old = c.old(kind)
		all[3] = old
		follow("with killed holders", epoch, "a", "b", "paused")
		progress()
		if stage == stages.Legacy {
			c.move(stages.Bridge)
			c.Progress(1, all...)
		}
	}

	// A member that is stopped does not hear of a correction. The next stage waits for it, and it takes the correction over
	// before it locks again.
	c.stopOutside(paused, func() { paused.Signal(syscall.SIGSTOP) }, func() { paused.Signal(syscall.SIGCONT) }, a, b, old)
	epoch := correct("more careful")
	follow("after a stop", epoch, "a", "b")
	blockers, err := c.store.Move(t.Context(), epoch, stages.Modern, false)
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(blockers, func(b stages.Blocker) bool { return nameOf(b.Member) == "paused" }), "%v", blockers)
	paused.Signal(syscall.SIGCONT)
	follow("after a stop", epoch, "a", "b", "paused")
	c.Progress(1, all...)

	c.Stop(all...)
	c.judge(paused.ID)
}

// TestABookThatIsAway: a Go member that cannot write into the book says so, as the other holders do, and gives its lock back.
func TestABookThatIsAway(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	h := holders.StartGo(t, "modern", s.URL(), holders.Arg("book", redistest.FreeAddr(t)))
	h.Send("turns lock.a book 1 1")
	e := h.Next(10 * time.Second)
	assert.Equal(t, "error referee", e.Event+" "+e.Op, "%+v", e)
	assert.Equal(t, "turn", h.Next(time.Minute).Event)
	assert.Equal(t, int64(0), s.Do("EXISTS", "lock.a"))
}
