package holders

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Fleet is a set of holders that take turns on one key, with a referee's book on the server: a hash
// in which everyone who is inside has a field. The book knows nothing of the lock.
type Fleet struct {
	T       testing.TB
	Server  *redistest.Server // of the referee's book
	Key     string
	Members []Member
	Turns   int           // to be taken by all together, at least
	Each    int           // to be taken by each, at least; zero: one; negative: none
	Hold    time.Duration // inside
	Kills   []int         // members to kill -9 while they are inside, in this order, spread over the run
	Stops   []int         // members to stop (SIGSTOP) for StopFor while they are inside, in this order, spread like the kills
	StopFor time.Duration
	Limit   time.Duration // for the whole run
	// Beside, if set, runs beside the fleet, which is at work until it returns. It may wait until all have taken so many turns.
	Beside func(after func(turns int))
	// Record writes down with MONITOR who is in the book and when, and tells overlaps of a holder that had been told apart from the
	// others: see Report.Told. Without it every overlap counts. A test that restarts its server cannot have it.
	Record bool
	// Meanwhile, if set, is called once after each turn with the count so far; it may stop or change
	// members, stages, the server.
	Meanwhile func(turns int)
}

// Noise is a Meanwhile: another application's SETNX with each turn. Go takes it for a sign of old clients and leaves gaps. Beside clients
// that send none there is one gap in 30 s, see TestExamples in internal/scripts, bridge_release.
func Noise(s *redistest.Server) func(turns int) {
	conn := s.Conn()
	return func(int) { _, _ = conn.Do("SETNX", "of another application", 1) }
}

// Member starts one holder of the fleet.
type Member func() *Holder

// Report is what a fleet's run came to.
type Report struct {
	Turns    int
	ByMember []int // turns of each member and its replacements
	Inside   int   // the most that were inside together
	Overlaps int   // turns that found another inside
	// Told are overlaps recorded, and not in Overlaps, that a lock with a deadline cannot prevent, by the holder that was told: see
	// record.judge.
	Told   map[string]int
	Kills  int     // holders killed inside
	Errors []Event // what the locks threw
	Took   time.Duration
	Lock   []redistest.Command // that were sent for the key, where the fleet is recorded
}

func (r Report) String() string {
	return fmt.Sprintf("%d turns %v in %v, most inside %d, overlaps %d (and told %v), killed inside %d, errors %d",
		r.Turns, r.ByMember, r.Took.Round(time.Millisecond), r.Inside, r.Overlaps, r.Told, r.Kills, len(r.Errors))
}

type said struct {
	member int
	holder *Holder
	event  Event
	ended  bool
}

// Run lets the fleet work until the turns are taken, and stops it.
func (f Fleet) Run() Report {
	f.T.Helper()
	referee := f.Key + ":referee"
	report := Report{ByMember: make([]int, len(f.Members))}
	all := make(chan said, 1024)
	quit := make(chan struct{})
	defer close(quit)
	current := make([]*Holder, len(f.Members))
	enlist := func(i int) {
		h := f.Members[i]()
		current[i] = h
		h.Send("turns %s %s %d %d", f.Key, referee, 1_000_000, f.Hold.Milliseconds())
		go func() {
			for e := range h.Events() {
				select {
				case all <- said{i, h, e, false}:
				case <-quit:
					return
				}
			}
		}()
	}
	var book *record
	if f.Record {
		book = newRecord(f.Server, f.Key, referee)
	}
	taken, besideOver := f.beside()
	began := time.Now()
	for i := range f.Members {
		enlist(i)
	}

	running, stopping := len(f.Members), false
	victims, sleepers := f.Kills, f.Stops
	// A holder that was stopped is not stopped once more in the same turn: it may say that it entered only after it was woken.
	stopped, woken, wake := map[*Holder]bool{}, map[*Holder]bool{}, make(chan *Holder, len(f.Stops))
	deadline := time.After(f.Limit)
	for running > 0 {
		var s said
		select {
		case s = <-all:
		case h := <-wake:
			h.Signal(syscall.SIGCONT)
			woken[h] = true
			continue
		case <-deadline:
			f.T.Fatalf("the fleet has not finished within %v: %v", f.Limit, report)
		}
		switch e := s.event; e.Event {
		case "turn":
			report.Turns++
			taken.Store(int64(report.Turns))
			report.ByMember[s.member]++
			report.Inside = max(report.Inside, e.Inside)
			book.note(s.holder.ID, e)
			if woken[s.holder] {
				delete(stopped, s.holder)
				delete(woken, s.holder)
			}
			if e.Inside > 1 {
				report.Overlaps++
			}
			if f.Meanwhile != nil && !stopping {
				f.Meanwhile(report.Turns)
			}
		case "entered":
			// The kills and stops are spread over the first four fifths of the run.
			due := func(all, left []int) bool {
				return len(left) > 0 && report.Turns*5*len(all) >= f.Turns*4*(len(all)-len(left)) && s.member == left[0] && s.holder == current[s.member] && !stopped[s.holder] && !stopping
			}
			if due(f.Kills, victims) && f.catch(referee, s.holder) {
				s.holder.Kill()
				// Its name still in the book proves that it died inside. Otherwise it had left when it was stopped, and
				// its successor is the next victim.
				if f.Server.Do("HDEL", referee, s.holder.ID) == int64(1) {
					victims = victims[1:]
					report.Kills++
				}
				enlist(s.member)
			} else if due(f.Stops, sleepers) && f.catch(referee, s.holder) {
				stopped[s.holder] = true
				time.AfterFunc(f.StopFor, func() { wake <- s.holder })
				sleepers = sleepers[1:]
			}
		case "error", "garbage":
			report.Errors = append(report.Errors, e)
		case "done":
			running--
		}
		if !stopping && report.Turns >= f.Turns && len(victims)+len(sleepers) == 0 && everyone(report.ByMember, cmp.Or(f.Each, 1)) && besideOver() {
			stopping = true
			for _, h := range current {
				h.Send("stop")
			}
		}
	}
	report.Took = time.Since(began)
	book.report(f.T, &report)
	return report
}

// beside starts what runs beside the fleet. It is told of the turns that were taken.
func (f Fleet) beside() (taken *atomic.Int64, over func() bool) {
	taken = new(atomic.Int64)
	if f.Beside == nil {
		return taken, func() bool { return true }
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Beside(func(turns int) {
			for taken.Load() < int64(turns) && f.T.Context().Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
		})
	}()
	return taken, func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
}

// catch stops a holder if it is inside. One that is not goes on: on a busy machine a holder has often left before its "entered"
// is read, and a new process is much later than its next turn.
func (f Fleet) catch(referee string, h *Holder) bool {
	h.Stop()
	if f.Server.Do("HEXISTS", referee, h.ID) == int64(1) {
		return true
	}
	h.Signal(syscall.SIGCONT)
	return false
}

func everyone(turns []int, least int) bool {
	for _, n := range turns {
		if n < least {
			return false
		}
	}
	return true
}
