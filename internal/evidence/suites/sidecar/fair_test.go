package sidecar

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// share is what each member of a fleet got in a time, when all were there.
type share struct {
	turns  []int
	inside int
	p95    []time.Duration // of the waits
}

// take lets members take turns of 5 ms for a while.
func (s *site) take(members []holders.Member, during time.Duration) share {
	r := share{turns: make([]int, len(members)), p95: make([]time.Duration, len(members))}
	waits := make([][]float64, len(members))
	var all []*holders.Holder
	for _, m := range members {
		all = append(all, m())
	}
	for _, h := range all {
		h.Send("turns lock:fleet lock:fleet:referee 1000000 5")
	}
	began, counted := map[int]bool{}, time.Time{}
	for counted.IsZero() || time.Since(counted) < during {
		for i, h := range all {
			for more := true; more; {
				select {
				case e := <-h.Events():
					if e.Event != "turn" {
						continue
					}
					r.inside = max(r.inside, e.Inside)
					if began[i] = true; !counted.IsZero() {
						r.turns[i]++
						waits[i] = append(waits[i], e.WaitedMS)
					}
				default:
					more = false
				}
			}
		}
		if counted.IsZero() && len(began) == len(all) {
			counted = time.Now()
		}
		time.Sleep(time.Millisecond)
	}
	for i, h := range all {
		h.Kill()
		slices.Sort(waits[i])
		if n := len(waits[i]); n > 0 {
			r.p95[i] = time.Duration(waits[i][n*95/100]) * time.Millisecond
		}
	}
	return r
}

// TestFair: three Java services and two Go services on one key. Behind sidecars each service fares about as well as when all are legacy.
func TestFair(t *testing.T) {
	fleet := func(stage stages.Stage, behind bool) share {
		s := newSite(t, stage)
		var members []holders.Member
		for _, name := range []string{"billing", "stock", "mail"} {
			if behind {
				m, _ := s.behind(holders.JedisLock, name, "", 0)
				members = append(members, m)
			} else {
				members = append(members, s.of(holders.JedisLock, s.server.URL(), 0))
			}
		}
		r := s.take(append(members, s.goMember(), s.goMember()), 5*time.Second)
		t.Logf("%v, behind sidecars %v: turns %v, p95 of the waits %v", stage, behind, r.turns, r.p95)
		assert.Equal(t, 1, r.inside, redistest.Violated)
		return r
	}
	before := fleet(stages.Legacy, false)
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		after := fleet(stage, true)
		for i := range 3 {
			// 0.8 on a quiet machine; here it is shared with other tests.
			assert.Greater(t, float64(after.turns[i]), 0.5*float64(slices.Min(before.turns[:3])), "service %d at stage %v", i, stage)
		}
	}
}
