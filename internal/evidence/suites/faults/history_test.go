package faults

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// explained tells whether a key's turns are linearizable: a lock that one holds at a time, whose fencing tokens only rise, can have done what
// the callers saw. The tokens leave one order to try: each turn's acquisition and end must have an instant between call and return, in that
// order. A loss ends a turn like a release, at any time since its holder came in.
func explained(turns []*visit) bool {
	turns = slices.SortedFunc(slices.Values(turns), func(a, b *visit) int { return cmp.Compare(a.fence, b.fence) })
	var now time.Time
	within := func(call, back time.Time) bool {
		if call.After(now) {
			now = call
		}
		return !now.After(back)
	}
	for i, v := range turns {
		end := v.ended
		if v.lost {
			end = v.entered
		}
		if i > 0 && turns[i-1].fence == v.fence || !within(v.called, v.entered) || !within(end, v.released) {
			return false
		}
	}
	return true
}

// unexplained are the keys of fencing tokens whose history no order explains. It returns how many turns there were, too.
func (c *crew) unexplained() (checked int, wrong []string) {
	byKey := map[string][]*visit{}
	for _, v := range c.history {
		if v.fence != 0 {
			byKey[v.key] = append(byKey[v.key], v)
			checked++
		}
	}
	for key, turns := range byKey {
		if !explained(turns) {
			wrong = append(wrong, key)
		}
	}
	return checked, wrong
}

// TestExplained: what a history may look like, and what not.
func TestExplained(t *testing.T) {
	turn := func(fence int64, called, entered, ended, released int, lost bool) *visit {
		at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
		return &visit{fence: fence, called: at(called), entered: at(entered), ended: at(ended), released: at(released), lost: lost}
	}
	for name, c := range map[string]struct {
		turns []*visit
		want  bool
	}{
		"in turn":                           {[]*visit{turn(1, 0, 1, 2, 3, false), turn(2, 0, 4, 5, 6, false)}, true},
		"released before the reply":         {[]*visit{turn(1, 0, 1, 2, 9, false), turn(2, 0, 4, 5, 6, false)}, true},
		"beside":                            {[]*visit{turn(1, 0, 1, 5, 6, false), turn(2, 0, 4, 7, 8, false)}, false},
		"beside one that has lost its lock": {[]*visit{turn(1, 0, 1, 5, 6, true), turn(2, 0, 4, 7, 8, false)}, true},
		"tokens that fall":                  {[]*visit{turn(2, 0, 1, 2, 3, false), turn(1, 4, 5, 6, 7, false)}, false},
		"one token twice":                   {[]*visit{turn(1, 0, 1, 2, 3, false), turn(1, 4, 5, 6, 7, false)}, false},
	} {
		assert.Equal(t, c.want, explained(c.turns), name)
	}
}
