package stages

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestNoHistoryReachesLegacyBesideModern plays random histories of members and operators against the
// scripts, with a naive model of what each member may have in use, and checks after every step that no
// two stages but neighbours can be. In half of the histories the server goes back to an earlier state of the record and its members.
// Then a lock does not count whose holder has not reported since, and has no lease any more: it ends with its TTL, as every lock
// that the server forgets.
func TestNoHistoryReachesLegacyBesideModern(t *testing.T) {
	redistest.Unraced(t)
	s := redistest.Mini(t)
	rng := rand.New(rand.NewPCG(11, 12))
	moves, apart := map[Stage]int{}, 0
	for history := range redistest.Rounds(30, 200) {
		s.Do("FLUSHALL")
		clock := time.Now().Truncate(time.Millisecond)
		s.Mini.SetTime(clock)
		store := &Store{Pool: s.Pool(), Namespace: "orders", ReplyTimeout: 5 * time.Second}
		create(t, store)
		type actor struct {
			*fake
			ends  time.Time
			locks map[Stage]time.Time // until when a lock of a stage is held at most
			dead  bool
			cut   bool // the server has forgotten changes, and it has not reported since
		}
		var actors []*actor
		lives := 0
		for i := range 3 {
			actors = append(actors, &actor{fake: newFake(t, store, fmt.Sprint(i)), locks: map[Stage]time.Time{}})
			actors[i].Lease = 12 * time.Second
		}
		var log []string
		way := Stage(1) // in which the operator moves
		type snapshot struct {
			stage int
			keys  [2][]any // record and members
		}
		var snapshots []snapshot
		for range 160 {
			a := actors[rng.IntN(3)] // those behind them are dead
			if history%2 == 0 && rng.IntN(8) == 0 {
				stage, _ := strconv.Atoi(s.Mini.HGet(RecordKey("orders"), "stage"))
				snapshots = append(snapshots, snapshot{stage, [2][]any{s.Do("HGETALL", RecordKey("orders")).([]any), s.Do("HGETALL", MembersKey("orders")).([]any)}})
			}
			switch rng.IntN(80) {
			case 0: // dies, with what it holds, and comes back under the same name
				dead := *a
				actors = append(actors, &dead)
				lives++
				a.fake = newFake(t, store, fmt.Sprint(strings.Split(a.ID, "/")[0], "/", lives))
				a.Lease = dead.Lease
				a.ends, a.locks = time.Time{}, map[Stage]time.Time{}
				dead.dead = true
				log = append(log, dead.ID+" dies, "+a.ID+" follows")
			case 2, 3, 4: // the server goes back: to a state two stages away where there is one
				if len(snapshots) == 0 {
					break
				}
				now, _ := strconv.Atoi(s.Mini.HGet(RecordKey("orders"), "stage"))
				back := snapshots[rng.IntN(len(snapshots))]
				for i := range snapshots {
					if far := snapshots[i]; max(far.stage-now, now-far.stage) == 2 {
						back = far
					}
				}
				s.Replaced()
				for i, key := range []string{RecordKey("orders"), MembersKey("orders")} {
					s.Do("DEL", key)
					if len(back.keys[i]) > 0 {
						s.Do("HSET", append([]any{key}, back.keys[i]...)...)
					}
				}
				for _, a := range actors {
					a.cut = true
				}
				view, err := store.Show(t.Context())
				require.NoError(t, err)
				log = append(log, fmt.Sprint("the server forgets: ", view.Record.Stage, ", epoch ", view.Record.Epoch))
			case 1: // an operator changes what the namespace is
				view, err := store.Show(t.Context())
				require.NoError(t, err)
				to := view.Record
				to.Shortest += time.Second
				if blockers, err := store.Set(t.Context(), view.Record.Epoch, view.Record, to, true); err != nil || len(blockers) > 0 && blockers[0].Why != "restarted" {
					t.Fatal(blockers, err)
				}
				log = append(log, "set")
			}
			switch rng.IntN(12) {
			case 0, 1, 7, 8, 9: // reports; one time in four the reply is lost, and it goes on as before
				a.holds(-1, -1)
				for stage := Legacy; stage <= Modern; stage++ {
					if a.locks[stage].After(clock) {
						if a.Lowest < 0 {
							a.Lowest = stage
						}
						a.Highest = stage
					}
				}
				if !a.ends.After(clock) {
					a.Epoch, a.Stage = -1, -1
				}
				before := a.Report
				a.Seq, a.cut = a.Seq+1, false
				order, err := store.Join(t.Context(), a.Report)
				switch {
				case errors.Is(err, ErrForgot):
					if errors.Is(err, ErrApart) {
						a.ends = time.Time{}
						apart++
					}
					log = append(log, fmt.Sprint(a.ID, " reports: ", err))
				case err != nil:
					t.Fatal(err)
				case rng.IntN(4) == 0:
					a.Epoch, a.Stage = before.Epoch, before.Stage
				default:
					a.Epoch, a.Stage, a.ends = order.Epoch, order.Stage, order.Ends
					log = append(log, fmt.Sprint(a.ID, " runs ", a.Stage))
				}
			case 2: // takes a lock, if its lease allows
				if a.Stage >= 0 && a.ends.After(clock) {
					a.locks[a.Stage] = clock.Add(a.Longest)
					log = append(log, fmt.Sprint(a.ID, " takes ", a.Stage))
				}
			case 3: // renews what it holds, if its lease allows
				for stage, until := range a.locks {
					if until.After(clock) && a.ends.After(clock) {
						a.locks[stage] = clock.Add(a.Longest)
					}
				}
			case 4: // releases
				if rng.IntN(2) == 0 {
					clear(a.locks)
				}
			case 5:
				clock = clock.Add(time.Duration(rng.IntN(3)) * time.Second)
				s.Mini.SetTime(clock)
				log = append(log, "time passes")
			case 6, 10, 11:
				view, err := store.Show(t.Context())
				require.NoError(t, err)
				if rng.IntN(12) == 0 || !Valid(view.Record.Stage+way) {
					way = -way
				}
				if to := view.Record.Stage + way; Valid(to) {
					if blockers, err := store.Move(t.Context(), view.Record.Epoch, to, true); err == nil && len(blockers) == 0 {
						moves[to]++
						log = append(log, fmt.Sprint("moved to ", to))
					}
				}
			}
			inUse := map[Stage]bool{}
			for _, a := range actors {
				if !a.dead && a.Stage >= 0 && a.ends.After(clock) {
					inUse[a.Stage] = true
				}
				for stage, until := range a.locks {
					if until.After(clock) && (!a.cut || a.ends.After(clock)) {
						inUse[stage] = true
					}
				}
			}
			if inUse[Legacy] && inUse[Modern] {
				t.Fatalf("history %d: legacy beside modern:\n%s", history, strings.Join(log, "\n"))
			}
		}
	}
	t.Logf("a member was two stages away from the record %d times", apart)
	assert.True(t, apart != 0, "no history lost two changes of the stage")
	for stage := Legacy; stage <= Modern; stage++ {
		assert.True(t, moves[stage] >= redistest.Rounds(3, 10), "only %d moves to %v in all histories: they prove little", moves[stage], stage)
	}
}
