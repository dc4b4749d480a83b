package holders

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestOverlaps: only an overlap of a lock that had ended, and of a holder that was told, is no violation.
func TestOverlaps(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(1_700_000_000_000 + ms) }
	of := func(id string, from, to int64) *Stay {
		s := &Stay{ID: id, From: at(from)}
		if to > 0 {
			s.To = at(to)
		}
		return s
	}
	sure := func(s *Stay, until int64, lost bool) *Stay {
		s.Turn.Until, s.Turn.Lost = at(until).UnixMicro(), lost
		return s
	}
	left := func(s *Stay, at, told int64) *Stay {
		s.Turn.Left, s.Turn.Told = s.From.UnixMicro()+1000*at, told
		return s
	}
	due := func(s *Stay, ms int64) *Stay {
		s.Turn.Due = at(ms).UnixMicro()
		return s
	}
	elsewhere := of("b", 4, 9)
	elsewhere.Book = "another"
	for name, c := range map[string]struct {
		stays  []*Stay
		told   []string
		untold int
	}{
		"one after the other":                     {[]*Stay{of("a", 1, 5), of("b", 5, 9), of("a", 9, 12)}, nil, 0},
		"two whose locks know no deadline":        {[]*Stay{of("a", 1, 5), of("b", 4, 9)}, nil, 1},
		"two locks":                               {[]*Stay{of("a", 1, 5), elsewhere}, nil, 0},
		"one never left":                          {[]*Stay{of("a", 1, 0), of("b", 4, 9), of("c", 10, 11)}, nil, 2},
		"stopped beyond its deadline, and told":   {[]*Stay{sure(of("a", 1, 90), 30, true), of("b", 31, 40), of("b", 41, 50)}, []string{"a", "a"}, 0},
		"stopped, but not told":                   {[]*Stay{sure(of("a", 1, 90), 30, false), of("b", 31, 40)}, nil, 1},
		"stopped, and told at its release alone":  {[]*Stay{left(sure(of("a", 1, 90), 30, true), 85, 0), of("b", 31, 40)}, nil, 1},
		"stopped, and told by its context":        {[]*Stay{left(sure(of("a", 1, 90), 30, true), 85, 1), of("b", 31, 40)}, []string{"a"}, 0},
		"told late, though it ran":                {[]*Stay{due(left(sure(of("a", 1, 90), 30, true), 85, 1), 86), of("b", 31, 40), of("b", 87, 88)}, []string{"a"}, 1},
		"stopped when its work was over":          {[]*Stay{left(sure(of("a", 1, 90), 30, true), 3, 0), of("b", 29, 40)}, []string{"a"}, 0},
		"told, but the other came before the end": {[]*Stay{sure(of("a", 1, 90), 30, true), of("b", 30, 40)}, nil, 1},
		"late to come in":                         {[]*Stay{of("b", 31, 50), sure(of("a", 40, 45), 30, true)}, []string{"a"}, 0},
		"late to come in, within its lease":       {[]*Stay{of("b", 31, 50), sure(of("a", 40, 45), 60, true)}, nil, 1},
		"two at once, one of them told":           {[]*Stay{sure(of("a", 1, 90), 30, true), of("b", 31, 60), of("c", 32, 40)}, []string{"a", "a"}, 1},
	} {
		overlaps, told := Overlaps(c.stays)
		assert.Len(t, overlaps, c.untold, name)
		var who []string
		for _, o := range told {
			who = append(who, o.overdue().ID)
		}
		assert.Equal(t, c.told, who, name)
	}
	command := func(ms int64, words ...string) redistest.Command {
		return redistest.Command{At: at(ms), Words: words}
	}
	killed := Stays([]redistest.Command{
		command(1, "HSET", "book", "a", "1"), command(3, "HSET", "book", "b", "1"), command(4, "HSET", "book", "a", "2"), command(9, "HDEL", "book", "b"),
	}, nil, map[string]time.Time{"a": at(2)})
	assert.Len(t, killed, 2, "the last word of a dead process")
	assert.Equal(t, at(2), killed[0].To, "a process leaves when it is killed")
	assert.Equal(t, at(9), killed[1].To)
	both := Overlap{sure(of("a", 1, 90), 50, true), of("b", 31, 60)}
	assert.Equal(t, 19*time.Millisecond, both.Took(), "until the one who was told had no lock any more")
}
