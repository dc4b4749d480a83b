package holders

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Fleet is a Crew that works until its turns are taken, and of whom some are killed or stopped inside.
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
	Limit   time.Duration // between two turns, and for what is left when all Turns are taken: not for the run, which takes as long as the machine does
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
// that send none there is one gap in 30 s, see TestExamples in internal/redis/scripts, bridge_release.
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

// Thrown are the errors that no lock may throw, of a fleet that is recorded and has Go holders of these TTLs and leases, the shortest first. A client that
// takes over with GETSET asks first and writes then: a loser's GETSET that is late overwrites a holder's value, whatever that is, also before the holder
// has heard that it has the lock. Go is told of it at its release, and the record has that GETSET, which members at stage legacy send within a script. And a
// process that the machine did not run beyond its deadline is told: a turn takes moments, and the shortest lease of a lock that was handed over is
// half of a third of the TTL. What is left has the last commands of the record before it.
func (r Report) Thrown(ttls ...time.Duration) []Event {
	thrown := slices.DeleteFunc(slices.Clone(r.Errors), func(e Event) bool {
		from, to := e.Began, e.Ended
		for _, ttl := range slices.Backward(ttls) { // of what it was acquired with: the time before it asked
			if sent := e.Until - ttl.Microseconds(); sent <= e.Began {
				from = sent
			}
		}
		if to == 0 { // a holder of another language says no times
			from, to = 0, math.MaxInt64
		}
		clobbered := func(c redistest.Command) bool {
			at := c.At.UnixMicro()
			return slices.Contains(c.Words, "GETSET") && from <= at && at <= to
		}
		told := e.Op == "release" && (e.Lost || strings.Contains(e.Message, "displaced"))
		return e.Stood(ttls[0]/6) || told && slices.ContainsFunc(r.Lock, clobbered)
	})
	for i, e := range thrown {
		thrown[i].Message += "\n" + before(r.Lock, time.UnixMicro(e.Ended))
	}
	return thrown
}

// Run lets the fleet work until the turns are taken, and stops it.
func (f Fleet) Run() Report {
	f.T.Helper()
	type said struct {
		by    *Holder
		event string
	}
	// All that is said in minutes: a holder whose words nobody takes stands still while it says them, and that is inside.
	heard, quit := make(chan said, 1<<18), make(chan struct{})
	c := &Crew{T: f.T, Key: f.Key, Hold: f.Hold, heard: func(h *Holder, e Event) {
		select {
		case heard <- said{h, e.Event}:
		case <-quit:
		}
	}}
	if f.Record {
		c.Record = f.Server
	}
	all := make([][]*Holder, len(f.Members)) // each with those whom it replaced, the present one last
	enlist := func(i int) { all[i] = append(all[i], c.Enlist(f.Members[i]())) }
	present := func(i int) *Holder { return all[i][len(all[i])-1] }
	turns, kills, victims, sleepers := 0, 0, f.Kills, f.Stops // so far, and to come
	// The kills and stops are spread over the first four fifths of the run.
	due := func(all, left []int, h *Holder) bool {
		return len(left) > 0 && h == present(left[0]) && turns*5*len(all) >= f.Turns*4*(len(all)-len(left))
	}
	finished := func() bool {
		for _, member := range all {
			if c.Count(member...) < cmp.Or(f.Each, 1) {
				return false
			}
		}
		return len(victims)+len(sleepers) == 0 && turns >= f.Turns
	}
	var besideOver atomic.Bool
	go func() {
		defer besideOver.Store(true)
		if f.Beside != nil {
			f.Beside(func(turns int) {
				for c.Count() < turns && f.T.Context().Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	}()
	began := time.Now()
	for i := range f.Members {
		enlist(i)
	}
	// A holder that was stopped is not stopped once more in the same turn: it may say that it entered only after it was woken.
	stopped, woken, wake := map[*Holder]bool{}, map[*Holder]bool{}, make(chan *Holder, len(f.Stops))
	limit := time.NewTimer(f.Limit)
	defer limit.Stop()
	for len(stopped) > len(woken) || !finished() || !besideOver.Load() {
		var s said
		select {
		case s = <-heard:
		case h := <-wake:
			h.Signal(syscall.SIGCONT)
			woken[h] = true
		case <-limit.C:
			f.T.Fatalf("the fleet has stood still for %v: %d turns, %d killed", f.Limit, turns, kills)
		}
		switch s.event {
		case "turn":
			if woken[s.by] {
				delete(stopped, s.by)
				delete(woken, s.by)
			}
			if turns++; turns <= f.Turns {
				limit.Reset(f.Limit)
			}
			if f.Meanwhile != nil {
				f.Meanwhile(turns)
			}
		case "entered":
			if stopped[s.by] {
				continue
			}
			if due(f.Kills, victims, s.by) && c.Catch(f.Server, s.by) {
				member := victims[0]
				// Its name still in the book proves that it dies inside. Otherwise it had left when it was stopped, and its successor is the next
				// victim. The name goes first: on a busy machine a process takes longer than a lease to end, and others come in by then.
				if f.Server.Do("HDEL", c.Referee(), s.by.ID) == int64(1) {
					victims = victims[1:]
					kills++
				}
				s.by.Kill()
				enlist(member)
			} else if due(f.Stops, sleepers, s.by) && c.Catch(f.Server, s.by) {
				stopped[s.by] = true
				time.AfterFunc(f.StopFor, func() { wake <- s.by })
				sleepers = sleepers[1:]
			}
		}
	}
	close(quit)
	var last []*Holder
	for i := range all {
		last = append(last, present(i))
	}
	c.Stop(last...)
	report := c.Found()
	report.Kills, report.Took = kills, time.Since(began)
	for _, member := range all {
		report.ByMember = append(report.ByMember, c.Count(member...))
	}
	return report
}

// Catch stops a holder if it is inside, by the book on a server. One that is not goes on: on a busy machine a holder has often left before its
// "entered" is read, and a new process is much later than its next turn.
func (c *Crew) Catch(book *redistest.Server, h *Holder) bool {
	h.Stop()
	if book.Do("HEXISTS", c.Referee(), h.ID) == int64(1) {
		return true
	}
	h.Signal(syscall.SIGCONT)
	return false
}
