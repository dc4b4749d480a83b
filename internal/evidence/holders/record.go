package holders

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// record is the history of a referee's book as the server executed it, beside what the holders said of their turns.
type record struct {
	monitor      *redistest.Monitor
	key, referee string
	turns        map[stayOf]Event
	lock         []redistest.Command // that were sent for the key itself
}

// newRecord begins to write down.
func newRecord(s *redistest.Server, key, referee string) *record {
	return &record{monitor: s.Monitor(), key: key, referee: referee, turns: map[stayOf]Event{}}
}

// note keeps what a holder said of a turn. A nil record does nothing.
func (r *record) note(id string, turn Event) {
	if r != nil {
		r.turns[stayOf{id, turn.N}] = turn
	}
}

// report judges the overlaps of a report that has those that the holders saw.
func (r *record) report(t testing.TB, report *Report) {
	if r == nil {
		return
	}
	told, untold, described := r.judge(r.stays())
	for _, d := range described {
		t.Log(d)
	}
	report.Lock = r.lock
	if len(told)+untold > 0 { // none recorded, though one was seen: what was seen counts
		report.Told, report.Overlaps = told, untold
	}
}

// stayOf names one turn: the holder, and its count of turns. Holders of other languages do not count in the book: all their
// stays are number 1, and they say no deadline.
type stayOf struct {
	id string
	n  int
}

// stay is one holder's time in the book.
type stay struct {
	stayOf
	from, to time.Time // by the server's clock, which is this host's; to is zero for one that never left
	turn     Event
}

// stays reads the history, in the order of entering.
func (r *record) stays() (all []*stay) {
	inside := map[string]*stay{}
	for _, c := range r.monitor.Commands() {
		if len(c.Words) < 3 || c.Words[1] != r.referee {
			if strings.Contains(strings.Join(c.Words, " "), r.key) && !strings.Contains(c.Words[1], r.referee) {
				r.lock = append(r.lock, c)
			}
			continue
		}
		switch id := c.Words[2]; c.Words[0] {
		case "HSET":
			n, _ := strconv.Atoi(c.Words[3])
			s := &stay{stayOf: stayOf{id, n}, from: c.At}
			s.turn = r.turns[s.stayOf]
			inside[id] = s
			all = append(all, s)
		case "HDEL":
			if s := inside[id]; s != nil {
				s.to = c.At
				delete(inside, id)
			}
		}
	}
	return all
}

// overdue tells that the lock behind a stay was certain only until before t, and that its holder was told: it stood still
// beyond its deadline, and heard of the loss at its release.
func (s *stay) overdue(t time.Time) bool {
	return s.turn.Lost && s.turn.Until > 0 && s.turn.Until < t.UnixMicro()
}

func (s *stay) String() string {
	left := "never"
	if !s.to.IsZero() {
		left = s.to.Format(clock)
	}
	said := ""
	if t := s.turn; t.Until > 0 {
		said = fmt.Sprintf(", acquired %s, certain until %s, released %s, lost %t",
			time.UnixMicro(t.Began).Format(clock), time.UnixMicro(t.Until).Format(clock), time.UnixMicro(t.Ended).Format(clock), t.Lost)
	}
	return fmt.Sprintf("%s, turn %d: entered %s, left %s%s", s.id, s.n, s.from.Format(clock), left, said)
}

const clock = "15:04:05.000000"

// judge returns how many overlaps of a history were told, by the holder that was, and how many were not. It describes the first five of
// these, and the first overlap of each stay that was told.
//
// An overlap is told, and no violation, if the lock of one of the two was certain only until before the second came in, and its
// holder heard of the loss. A process that is stopped, or that a busy machine does not run, for longer than its
// lease is in the critical section without a lock: nobody can take it out. It is told as soon as it runs. A lock cannot do
// more; a fencing token at the resource can. If no deadline was over, or its holder was not told, it is a violation.
func (r *record) judge(stays []*stay) (told map[string]int, untold int, described []string) {
	var inside []*stay
	told = map[string]int{}
	known := map[*stay]bool{}
	for _, s := range stays {
		now := []*stay{s}
		for _, o := range inside {
			if o.id == s.id || !o.to.IsZero() && !o.to.After(s.from) {
				continue
			}
			now = append(now, o)
			late := o
			if s.overdue(s.from) {
				late = s
			}
			switch {
			case !late.overdue(s.from):
				untold++
				if untold <= 5 {
					described = append(described, fmt.Sprintf("overlap: %v; beside it %v\n%s", o, s, r.before(s.from)))
				}
			default:
				told[late.id]++
				if !known[late] {
					described = append(described, fmt.Sprintf("told overlap: %v; beside it %v", o, s))
				}
				known[late] = true
			}
		}
		inside = now
	}
	return told, untold, described
}

// before lists the last commands for the lock's key before an overlap.
func (r *record) before(t time.Time) string {
	var lines []string
	for _, c := range r.lock {
		if c.At.After(t) {
			break
		}
		lines = append(lines, fmt.Sprintf("  %s %s %.300q", c.At.Format(clock), c.Addr, c.Words))
	}
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
