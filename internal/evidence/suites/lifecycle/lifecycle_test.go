// Package lifecycle runs all kinds of lock through random sequences of what their users and their networks do, in virtual time (package
// world), and holds them to what every lock promises, whatever happens:
//
//   - the holder's context is over by its deadline, also by the one that the lock tells, and no lock is handed out behind that;
//   - two do not hold the lock (the old scheme, which cannot promise that, aside);
//   - nothing of a lock stays on the server for longer than its TTL and a second after its clients have gone;
//   - the observer was told of as many ends as of beginnings;
//   - nobody waits for longer than the TTL and freeWait for a key that is free, or that others hold for moments;
//   - calls come back when their contexts are over, Do 250 ms after that, and Close leaves no connection and no goroutine.
//
// A sequence is rough or strict. In a rough one anything may happen to two or three clients: partitions, lost and late
// commands and replies, refusals, cut and refused connections, frozen processes. In a strict one there is one client and nothing happens
// that leaves a command undecided: late and lost replies, refusals, missing rights, a server out of memory. Then nobody
// may be told of a loss, no release and no renewal may be refused for want of memory or of rights that it does not
// need, and nothing stays on the server, although the TTL is far away.
//
//	go test ./internal/evidence/suites/lifecycle -args -sequences 2000            # of each kind
//	go test ./internal/evidence/suites/lifecycle -args -kind modern -seed 17      # one sequence, with all that happened
package lifecycle

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
)

var (
	sequences = flag.Int("sequences", wanted(100), "how many sequences of each kind; the default may stand in LOCKMIGRATE_LIFECYCLE")
	from      = flag.Uint64("from", 1, "the seed of the first one; 0: from the clock")
	only      = flag.Uint64("seed", 0, "the one seed to run; 0: all")
	ofKind    = flag.String("kind", "", "the kinds to run, separated by commas; empty: all")
	shown     = flag.Int("shown", 3, "how many failures of a kind are shown in full")
	until     = flag.String("until", "", "a fault, as a regular expression, after which a kind has run for long enough")
)

// wanted is the number of sequences that the run asks for.
func wanted(otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("LOCKMIGRATE_LIFECYCLE")); err == nil {
		return n
	}
	return otherwise
}

func TestLifecycle(t *testing.T) {
	debug.SetGCPercent(400) // a sequence leaves much behind, and keeps nothing
	if *from == 0 {
		*from = uint64(time.Now().UnixNano() / 1e6)
	}
	for _, k := range kinds {
		if *ofKind != "" && !strings.Contains(","+*ofKind+",", ","+k.name+",") {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			first, n := *from, *sequences
			if *only != 0 {
				first, n = *only, 1
			}
			start := time.Now()
			failed := all(t, k, first, n)
			t.Logf("%d sequences from seed %d in %v, %d failed", n, first, time.Since(start).Round(time.Millisecond), failed)
		})
	}
}

// enough is set when the fault that is looked for was found.
var enough atomic.Bool

// all runs the sequences of a kind, as many at once as there are processors, and returns how many failed.
func all(t *testing.T, k kind, first uint64, n int) int {
	var next, failed atomic.Int64
	var open sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		open.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && !enough.Load(); i = next.Add(1) - 1 {
				r := sequence(t, k, first+uint64(i))
				if *until != "" && slices.ContainsFunc(r.faults, regexp.MustCompile(*until).MatchString) {
					enough.Store(true)
				}
				switch {
				case len(r.faults) > 0 && failed.Add(1) <= int64(*shown):
					t.Errorf("%s\n%s  again: -kind %s -seed %d", strings.Join(r.faults, "\n"), r.story(), k.name, r.seed)
				case len(r.faults) > 0:
					t.Errorf("seed %d: %s", r.seed, r.faults[0])
				case *only != 0:
					fmt.Fprintln(os.Stderr, r.story())
				}
			}
		})
	}
	open.Wait()
	return int(failed.Load())
}

// sequence runs one sequence. The bubble tells of goroutines that are left when it is over.
func sequence(t *testing.T, k kind, seed uint64) *run {
	r := &run{plan: planOf(k, seed), held: map[*one]bool{}}
	defer func() {
		if left := recover(); left != nil {
			r.fail("after Close something goes on: %v", left)
		}
	}()
	world.Run(t, seed, r.play)
	return r
}

// story is what happened.
func (r *run) story() string {
	var b strings.Builder
	b.WriteString(r.plan.String())
	for _, n := range r.notes {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

// act runs the clients, makes everything good again, lets everybody in once more, and closes.
func (r *run) act() {
	var clients sync.WaitGroup
	for i, c := range r.members {
		clients.Go(func() { c.steps(r.clients[i]) })
	}
	clients.Wait()
	r.note("all steps are done")
	for _, c := range r.members {
		c.heal()
		if c.lock != nil {
			c.give(step{})
		}
	}
	mayStay := func() bool { return r.rough || r.unsettled() }
	if r.clean("the last step", staysFor, mayStay) { // else the last turns would say the same in other words
		r.turns()
	}
	for _, c := range r.members {
		c.closeLocker()
	}
	r.note("closed")
}

// turns gives each client a turn. Where the kind is fair, those who had theirs go on as fast as they can until the last one had it.
func (r *run) turns() {
	if !r.variant.fair {
		for _, c := range r.members {
			if !r.turnOf(c) {
				return
			}
		}
		return
	}
	var all sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(len(r.members)))
	for _, c := range r.members {
		all.Go(func() {
			if r.turnOf(c) {
				left.Add(-1)
			} else {
				left.Store(-1)
			}
			for left.Load() > 0 {
				if !c.turn(2 * time.Second) {
					time.Sleep(time.Millisecond) // else an error that comes at once would stop the time
				}
			}
		})
	}
	all.Wait()
}

// turnOf waits until a client had a turn.
func (r *run) turnOf(c *client) bool {
	start := time.Now()
	bound := func() time.Duration {
		if !r.rough && !r.unsettled() { // nothing may be on the server, so that the TTL is no reason to wait
			return r.terms.ttl / 2
		}
		return r.terms.ttl + freeWait
	}
	for !c.turn(bound()) {
		if took := time.Since(start); took > bound() {
			r.fail("client %d: did not get the lock for %v, with nothing in the way of anybody", c.id, took)
			return false
		}
		time.Sleep(poll)
	}
	return true
}

// turn takes the lock once more, holds it for a moment, and gives it back.
func (c *client) turn(bound time.Duration) bool {
	ctx, cancel := c.context(step{}, bound)
	defer cancel()
	k, err := c.locker.Acquire(ctx, c.key)
	if err != nil {
		c.note("client %d: at the end: %v", c.id, err)
		return false
	}
	l := c.holds(k, k.Context())
	c.lock = l
	time.Sleep(3 * time.Millisecond) // the next one stands in line by then
	c.give(step{})
	return true
}

// unsettled tells that a client was told that something of it may be on the server.
func (r *run) unsettled() bool {
	for _, c := range r.members {
		if c.unknown.Load() {
			return true
		}
	}
	return false
}

// end waits until nothing of the sequence may be on the server any more, and looks.
func (r *run) end() {
	r.open.Wait()
	for _, c := range r.members {
		count := func(k lockmigrate.EventKind) int64 { return c.count(k).Load() }
		began := count(lockmigrate.EventAcquired)
		// A lock whose release stayed without an answer ends at its deadline at the latest.
		if !eventually(r.terms.ttl+slack, func() bool {
			return began == count(lockmigrate.EventReleased)+count(lockmigrate.EventLost)
		}) {
			r.fail("client %d: the observer was told of %d acquisitions, %d releases and %d losses", c.id, began,
				count(lockmigrate.EventReleased), count(lockmigrate.EventLost))
		}
	}
	bound := staysFor
	if r.rough || r.unsettled() {
		bound += r.terms.ttl
	}
	r.clean("the end", bound, func() bool { return false })
	bound += r.terms.ttl // a quorum is released when most servers say so; what is on the others ends with the TTL
	if !eventually(bound, func() bool { return r.gone(1) }) {
		r.fail("%v after that there is still %s", bound, r.left())
	}
	for i, s := range r.servers {
		most := mostCommands
		if r.variant.deaf { // no message reaches it: each client looks every 4 ms, by a script of five commands, and gives back as often at most
			most = 500 + 8*len(r.members)*int(r.now()/(poll/10))
		}
		if n := s.Commands(); n > most {
			r.fail("server %d has run %d commands", i, n)
		}
		for _, key := range s.Do("KEYS", "*").([]any) {
			if s.Do("PTTL", key) == int64(-1) && !r.variant.namespace && !r.variant.old {
				r.fail("server %d: a key without a TTL: %q", i, key)
			}
		}
	}
}

// clean waits until most servers (of two both) have nothing of a lock, or something may stay, and tells whether that was so within the bound.
func (r *run) clean(after string, bound time.Duration, mayStay func() bool) bool {
	if eventually(bound, func() bool { return mayStay() || r.gone((len(r.servers)+1)/2) }) {
		return true
	}
	r.fail("%v after %s there is still %s", bound, after, r.left())
	return false
}

// gone tells that on fewer than n servers there is a lock's key, or that what is there is an expiry that is over.
func (r *run) gone(n int) bool { return len(r.left()) < n }

func (r *run) left() []string {
	var all []string
	for _, s := range r.servers {
		for _, key := range r.variant.keys(r.key) {
			kind := s.Do("TYPE", key)
			if kind == "none" {
				continue
			}
			value := fmt.Sprint(kind)
			if kind == "string" {
				value, _ = s.Value(key)
			}
			if r.variant.old {
				var ms int64
				if _, err := fmt.Sscanf(value, "%d", &ms); err == nil && ms < time.Now().UnixMilli() {
					continue
				}
			}
			all = append(all, fmt.Sprintf("%s = %s for %d ms", key, value, s.Do("PTTL", key)))
		}
	}
	return all
}

// What a sequence may cost at most, beside what its locks say. Time is virtual: no bound is there for a busy machine.
const (
	slack     = 2 * time.Millisecond  // of a context's end behind its deadline
	staysFor  = time.Second           // of what is on the server behind the TTL
	freeWait  = 5 * time.Second       // of one who waits for a key that is free
	returnsIn = 10 * time.Millisecond // of a call whose context is over
	closesIn  = 3 * time.Second       // of Close

	mostCommands = 10000 // of a server, in a sequence of a few seconds: nothing asks over and over

	doReturnsIn = 250 * time.Millisecond // of Do, as package lockmigrate says
)

// run is one sequence under way.
type run struct {
	*plan
	w       *world.World
	began   time.Time
	servers []*world.Server
	members []*client
	seen    func(words []string) // of each server's commands; nil: nobody looks

	mu     sync.Mutex
	notes  []note
	faults []string      // what it has found
	held   map[*one]bool // the locks that are held, of all clients
	open   sync.WaitGroup
}

// note is something that happened. Most sequences find nothing, and then nobody wants the text.
type note struct {
	at     time.Duration
	format string
	args   []any
}

func (n note) String() string {
	return fmt.Sprintf("%8.1f ms  ", float64(n.at.Microseconds())/1000) + fmt.Sprintf(n.format, n.args...)
}

func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, note{time.Since(r.began), format, args})
}

// fail notes a broken promise.
func (r *run) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.note("BROKEN: %s", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, text)
}

func (r *run) now() time.Duration { return time.Since(r.began) }

// play is the whole sequence.
func (r *run) play(w *world.World) {
	r.w, r.began = w, time.Now()
	for range max(r.variant.servers, 1) {
		s := w.Server()
		s.Seen = r.seen
		r.servers = append(r.servers, s)
		if r.seed%8 != 0 { // else each script is sent with its text first
			s.KnowScripts()
		}
	}
	r.rights("~*")
	if r.variant.namespace {
		prepare(r.servers, r.plan)
	}
	for i := range r.clients {
		c := &client{run: r, id: i, process: w.Process(fmt.Sprint(i)), happens: map[int]world.Fault{}}
		for _, server := range r.servers {
			route := c.process.Route(server)
			route.Decide = c.decideOn
			c.routes = append(c.routes, route)
		}
		r.members = append(r.members, c)
		if err := c.openLocker(); err != nil {
			w.Fatal(err)
		}
	}
	r.act()
	r.end()
}

func (r *run) rights(rules string) {
	for _, s := range r.servers {
		s.Rights(rules)
	}
}

// eventually looks until something is so, for no longer than the bound.
func eventually(bound time.Duration, yes func() bool) bool {
	end := time.Now().Add(bound)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if yes() {
			return true
		}
		left := time.Until(end)
		if left < 0 {
			return false
		}
		time.Sleep(min(pause, left+1))
	}
}
