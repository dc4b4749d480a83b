package holders

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestJudge: only an overlap of a lock that had ended, and of a holder that was told, is no violation.
func TestJudge(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(1_700_000_000_000 + ms) }
	of := func(id string, from, to int64) *stay {
		s := &stay{stayOf: stayOf{id, 1}, from: at(from)}
		if to > 0 {
			s.to = at(to)
		}
		return s
	}
	sure := func(s *stay, until int64, lost bool) *stay {
		s.turn.Until, s.turn.Lost = at(until).UnixMicro(), lost
		return s
	}
	for name, c := range map[string]struct {
		stays  []*stay
		told   map[string]int
		untold int
	}{
		"one after the other":                     {[]*stay{of("a", 1, 5), of("b", 5, 9), of("a", 9, 12)}, map[string]int{}, 0},
		"two whose locks know no deadline":        {[]*stay{of("a", 1, 5), of("b", 4, 9)}, map[string]int{}, 1},
		"one never left":                          {[]*stay{of("a", 1, 0), of("b", 4, 9), of("c", 10, 11)}, map[string]int{}, 2},
		"stopped beyond its deadline, and told":   {[]*stay{sure(of("a", 1, 90), 30, true), of("b", 31, 40), of("b", 41, 50)}, map[string]int{"a": 2}, 0},
		"stopped, but not told":                   {[]*stay{sure(of("a", 1, 90), 30, false), of("b", 31, 40)}, map[string]int{}, 1},
		"told, but the other came before the end": {[]*stay{sure(of("a", 1, 90), 30, true), of("b", 30, 40)}, map[string]int{}, 1},
		"late to come in":                         {[]*stay{of("b", 31, 50), sure(of("a", 40, 45), 30, true)}, map[string]int{"a": 1}, 0},
		"late to come in, within its lease":       {[]*stay{of("b", 31, 50), sure(of("a", 40, 45), 60, true)}, map[string]int{}, 1},
		"two at once, one of them told":           {[]*stay{sure(of("a", 1, 90), 30, true), of("b", 31, 60), of("c", 32, 40)}, map[string]int{"a": 2}, 1},
	} {
		told, untold, described := (&record{}).judge(c.stays)
		assert.Equal(t, c.told, told, "%s: %q", name, described)
		assert.Equal(t, c.untold, untold, "%s: %q", name, described)
		assert.Equal(t, untold, strings.Count("\n"+strings.Join(described, "\n"), "\noverlap: "), name)
	}
}
