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
	turns        Turns
	lock         []redistest.Command // that were sent for the key itself
}

// note keeps what a holder said of a turn. A nil record does nothing.
func (r *record) note(id string, turn Event) {
	if r != nil {
		r.turns.Note(id, turn)
	}
}

// report judges the overlaps of a report that has those that the holders saw. It logs the first five that were not told, and the first
// overlap of each stay that was.
func (r *record) report(t testing.TB, report *Report) {
	if r == nil {
		return
	}
	var book []redistest.Command
	for _, c := range r.monitor.Commands() {
		switch {
		case len(c.Words) >= 3 && c.Words[1] == r.referee:
			book = append(book, c)
		case strings.Contains(strings.Join(c.Words, " "), r.key) && !strings.Contains(c.Words[1], r.referee):
			r.lock = append(r.lock, c)
		}
	}
	overlaps, told := Overlaps(Stays(book, r.turns, nil))
	report.Lock = r.lock
	if len(told)+len(overlaps) > 0 { // none recorded, though one was seen: what was seen counts
		report.Told, report.Overlaps = map[string]int{}, len(overlaps)
	}
	for _, o := range overlaps[:min(5, len(overlaps))] {
		t.Logf("overlap: %v\n%s", o, before(r.lock, o.Second.From))
	}
	known := map[*Stay]bool{}
	for _, o := range told {
		late := o.overdue()
		if report.Told[late.ID]++; !known[late] {
			t.Logf("told overlap: %v", o)
		}
		known[late] = true
	}
}

// Turns is what holders said of their turns. Of those in other languages only Redisson with a lease says a deadline.
type Turns map[turnOf]Event

type turnOf struct {
	id string
	n  int
}

// Note keeps an event of a holder if it is about a turn: its end has all that its beginning has.
func (t Turns) Note(id string, e Event) {
	if e.Event == "entered" || e.Event == "turn" {
		t[turnOf{id, e.N}] = e
	}
}

// Stay is one holder's time in a referee's book.
type Stay struct {
	Book, ID string
	From, To time.Time // by the server's clock, which is this host's; To is zero for one that never left
	Turn     Event
}

// Stays reads the history of books, in the order of entering. The dead are holders that were killed, and when: what arrives of them later counts for nothing.
func Stays(history []redistest.Command, turns Turns, dead map[string]time.Time) (all []*Stay) {
	inside := map[[2]string]*Stay{}
	for _, c := range history {
		if len(c.Words) < 3 {
			continue
		}
		at := [2]string{c.Words[1], c.Words[2]}
		if died, killed := dead[at[1]]; killed && died.Before(c.At) {
			continue
		}
		switch c.Words[0] {
		case "HSET":
			n, _ := strconv.Atoi(c.Words[3])
			inside[at] = &Stay{Book: at[0], ID: at[1], From: c.At, Turn: turns[turnOf{at[1], n}]}
			all = append(all, inside[at])
		case "HDEL":
			if s := inside[at]; s != nil {
				s.To = c.At
				delete(inside, at)
			}
		}
	}
	for at, s := range inside {
		s.To = dead[at[1]]
	}
	return all
}

// behind is from when on its holder had a lock that it lost behind it, in the clock's microseconds: since the end of its work, or since the lock's
// deadline, where it was told by its context then, or as soon as it ran. It is 0 for never. A process that is stopped stays in the book for longer.
func (s *Stay) behind() int64 {
	switch t := s.Turn; {
	case !t.Lost:
		return 0
	case t.Left > 0 && t.Left < t.Until:
		return t.Left
	case t.Left > 0 && t.Told == 0:
		return 0
	default:
		return max(t.Until, t.Due)
	}
}

// overdue tells that this was before t.
func (s *Stay) overdue(t time.Time) bool {
	at := s.behind()
	return at > 0 && at < t.UnixMicro()
}

// over is when the holder has left, or had its lock behind it; the end of time for one that never left.
func (s *Stay) over() time.Time {
	left := s.To
	if left.IsZero() {
		left = time.Unix(1<<40, 0)
	}
	if s.overdue(left) {
		return time.UnixMicro(s.behind())
	}
	return left
}

func (s *Stay) String() string {
	left := "never"
	if !s.To.IsZero() {
		left = s.To.Format(clock)
	}
	said := ""
	if t := s.Turn; t.Until > 0 {
		said = fmt.Sprintf(", %s, acquired %s, certain until %s, released %s, lost %t, told %t",
			t.Stage, time.UnixMicro(t.Began).Format(clock), time.UnixMicro(t.Until).Format(clock), time.UnixMicro(t.Ended).Format(clock), t.Lost, t.Told > 0)
	}
	return fmt.Sprintf("%s, turn %d: entered %s, left %s%s", s.ID, s.Turn.N, s.From.Format(clock), left, said)
}

const clock = "15:04:05.000000"

// Overlap is a stay that began while another one of the same book went on.
type Overlap struct{ First, Second *Stay }

func (o Overlap) String() string { return fmt.Sprintf("%v; beside it %v", o.Second, o.First) }

// Took is for how long both were inside.
func (o Overlap) Took() time.Duration {
	end := o.First.over()
	if second := o.Second.over(); second.Before(end) {
		end = second
	}
	return end.Sub(o.Second.From)
}

// overdue is the one of the two whose lock was certain only until before the second came in, and who was told; nil for none.
func (o Overlap) overdue() *Stay {
	for _, s := range []*Stay{o.Second, o.First} {
		if s.overdue(o.Second.From) {
			return s
		}
	}
	return nil
}

// Overlaps returns the overlaps of a history, and apart from them those that were told.
//
// An overlap is told, and no violation, if the lock of one of the two was certain only until before the second came in, and its
// holder heard of the loss. A process that is stopped, or that a busy machine does not run, for longer than its
// lease is in the critical section without a lock: nobody can take it out. Its context is over as soon as it runs. A lock cannot do
// more; a fencing token at the resource can. If no deadline was over, or its holder was not told, it is a violation.
func Overlaps(stays []*Stay) (overlaps, told []Overlap) {
	inside := map[string][]*Stay{}
	for _, s := range stays {
		now := []*Stay{s}
		for _, other := range inside[s.Book] {
			if other.ID == s.ID || !other.To.IsZero() && !other.To.After(s.From) {
				continue
			}
			now = append(now, other)
			if o := (Overlap{other, s}); o.overdue() == nil {
				overlaps = append(overlaps, o)
			} else {
				told = append(told, o)
			}
		}
		inside[s.Book] = now
	}
	return overlaps, told
}

// before lists the last commands for the lock's key before something.
func before(lock []redistest.Command, t time.Time) string {
	var lines []string
	for _, c := range lock {
		if c.At.After(t) {
			break
		}
		lines = append(lines, fmt.Sprintf("  %s %s %.300q", c.At.Format(clock), c.Addr, c.Words))
	}
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
