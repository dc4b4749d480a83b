// Package lifecycle runs all kinds of lock through random sequences of what their users and their networks do, and
// holds them to what every lock promises, whatever happens:
//
//   - the holder's context is over by its deadline;
//   - two do not hold the lock (the old scheme, which cannot promise that, aside);
//   - nothing of a lock stays on the server for longer than its TTL and a second after its clients have gone;
//   - the observer was told of as many ends as of beginnings;
//   - nobody waits for longer than the TTL and freeWait for a key that is free, or that others hold for moments;
//   - calls come back when their contexts are over, and Close leaves no connection and no goroutine.
//
// A sequence is rough or strict. In a rough one anything may happen to two or three clients: partitions, lost and late
// commands and replies, refusals, cut and refused connections. In a strict one there is one client and nothing happens
// that leaves a command undecided: late and lost replies, refusals, missing rights, a server out of memory. Then nobody
// may be told of a loss, no release and no renewal may be refused for want of memory or of rights that it does not
// need, and nothing stays on the server, although the TTL is far away.
//
//	go test ./internal/evidence/suites/lifecycle -args -sequences 2000            # of each kind
//	go test ./internal/evidence/suites/lifecycle -args -kind modern -seed 17      # one sequence, with all that happened
package lifecycle

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

var (
	sequences = flag.Int("sequences", wanted(100), "how many sequences of each kind; the default may stand in LOCKMIGRATE_LIFECYCLE")
	from      = flag.Uint64("from", 1, "the seed of the first one; 0: from the clock")
	only      = flag.Uint64("seed", 0, "the one seed to run; 0: all")
	ofKind    = flag.String("kind", "", "the kinds to run, separated by commas; empty: all")
	atOnce    = flag.Int("at-once", 320, "how many sequences run at once")
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

func TestMain(m *testing.M) { redistest.Main(m, redistest.Redis) }

func TestLifecycle(t *testing.T) {
	if *from == 0 {
		*from = uint64(time.Now().UnixNano() / 1e6)
	}
	s := newSite(t)
	for _, k := range kinds() {
		if *ofKind != "" && !strings.Contains(","+*ofKind+",", ","+k.name+",") {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			first, n := *from, *sequences
			if *only != 0 {
				first, n = *only, 1
			}
			before := runtime.NumGoroutine()
			start := time.Now()
			failed := s.all(t, k, first, n)
			t.Logf("%d sequences from seed %d in %v, %d failed", n, first, time.Since(start).Round(time.Millisecond), failed)
			if !eventually(10*time.Second, func() bool { return runtime.NumGoroutine() <= before+2 }) {
				var stacks strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
				t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), stacks.String())
			}
		})
	}
}

func newSite(t *testing.T) *site {
	s := &site{memory: 3, crowds: make(chan struct{}, 8), late: redistest.NewLateness(t)}
	for range s.memory + 1 {
		server := redistest.Real(t, "--maxclients", "10000")
		s.servers = append(s.servers, server)
		pool := &redis.Pool{MaxIdle: 32, MaxActive: 64, Wait: true, DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", server.Addr)
		}}
		t.Cleanup(func() { _ = pool.Close() })
		s.admin = append(s.admin, pool)
	}
	return s
}

// all runs the sequences of a kind, many at once, and returns how many failed.
func (s *site) all(t *testing.T, k kind, first uint64, n int) int {
	var failed atomic.Int64
	var enough atomic.Bool
	var open sync.WaitGroup
	places := make(chan struct{}, *atOnce)
	for i := range n {
		if enough.Load() {
			break
		}
		places <- struct{}{}
		for s.late.Most() > 40*time.Millisecond && len(places) > 4 { // more would only make all of them late
			time.Sleep(5 * time.Millisecond)
		}
		open.Go(func() {
			p := planOf(k, first+uint64(i))
			r, err := s.start(t.Context(), p)
			if err != nil {
				<-places
				t.Errorf("seed %d: %v", p.seed, err)
				return
			}
			r.act()
			<-places
			r.end() // mostly waits for what must have gone by then
			if *until != "" && slices.ContainsFunc(r.faults, regexp.MustCompile(*until).MatchString) {
				enough.Store(true)
			}
			if len(r.faults) > 0 || *only != 0 {
				if len(r.faults) > 0 && failed.Add(1) <= int64(*shown) {
					t.Errorf("%s\n%s\n%s\n  again: -kind %s -seed %d", strings.Join(r.faults, "\n"), r.plan, strings.Join(r.notes, "\n"), k.name, p.seed)
				} else if len(r.faults) > 0 {
					t.Errorf("seed %d: %s", p.seed, r.faults[0])
				} else {
					fmt.Fprintln(os.Stderr, r.plan.String()+strings.Join(r.notes, "\n"))
				}
			}
		})
	}
	open.Wait()
	return int(failed.Load())
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

// turns gives each client a turn while the others take theirs as fast as they can, where the kind is fair.
func (r *run) turns() {
	r.site.crowds <- struct{}{}
	defer func() { <-r.site.crowds }()
	for _, c := range r.members {
		if !r.turnOf(c) {
			return
		}
	}
}

func (r *run) turnOf(c *client) bool {
	done := make(chan struct{})
	var others sync.WaitGroup
	for _, other := range r.members {
		if other == c || !r.kind.fair {
			continue
		}
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					other.turn(2*time.Second, 2*time.Millisecond) // so that the next one stands in line by then
				}
			}
		})
	}
	defer others.Wait()
	defer close(done)
	start := time.Now()
	bound := func() time.Duration {
		if !r.rough && !r.unsettled() { // nothing may be on the server, so that the TTL is no reason to wait
			return r.terms.ttl/2 + r.site.late.Most()
		}
		return r.terms.ttl + freeWait + r.site.late.Most()
	}
	for !c.turn(bound(), 0) {
		if took := time.Since(start); took > bound() {
			r.fail("client %d: did not get the lock for %v, with nothing in the way of anybody", c.id, took)
			return false
		}
		time.Sleep(poll)
	}
	return true
}

// turn takes the lock once more, holds it for a moment, and gives it back.
func (c *client) turn(bound, moment time.Duration) bool {
	ctx, cancel := c.context(step{}, bound)
	defer cancel()
	k, err := c.locker.Acquire(ctx, c.key)
	if err != nil {
		c.note("client %d: at the end: %v", c.id, err)
		return false
	}
	l := c.holds(k, k.Context())
	c.lock = l
	time.Sleep(moment)
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
		if !eventually(r.terms.ttl+slack+r.site.late.Most(), func() bool {
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
	bound += r.terms.ttl + r.site.late.Most() // a quorum is released when most servers say so; what is on the others ends with the TTL
	if !eventually(bound, func() bool { return r.gone(1) }) {
		r.fail("%v after that there is still %s", bound, r.left())
	}
	for i, pool := range r.pools {
		conn := pool.Get()
		_, _ = conn.Do("ACL", "DELUSER", r.user)
		keys, err := redis.Strings(conn.Do("EVAL", leftovers, 0, r.key, r.terms.name))
		if err != nil {
			r.fail("server %d: %v", i, err)
		} else if len(keys) > 0 && !r.kind.namespace && !r.kind.old {
			r.fail("server %d: keys without a TTL: %q", i, keys)
		}
		_ = conn.Close()
	}
}

// clean waits until most servers have nothing of a lock, or something may stay, and tells whether that was so within the bound
// and the lateness of timers.
func (r *run) clean(after string, bound time.Duration, mayStay func() bool) bool {
	bound += r.site.late.Most()
	if eventually(bound, func() bool { return mayStay() || r.gone(len(r.pools)/2+1) }) {
		return true
	}
	r.fail("%v after %s there is still %s", bound, after, r.left())
	return false
}

// leftovers lists the keys of a sequence that would stay for ever, and deletes all of them.
const leftovers = `
local stay = {}
for _, pattern in ipairs({ARGV[1], '{' .. ARGV[1] .. '}*', '*{' .. ARGV[2] .. '}*'}) do
  for _, key in ipairs(redis.call('KEYS', pattern)) do
    if redis.call('PTTL', key) == -1 then stay[#stay + 1] = key end
    redis.call('DEL', key)
  end
end
return stay`

// gone tells that on fewer than n servers there is a lock's key, or that what is there is an expiry that is over.
func (r *run) gone(n int) bool { return len(r.left()) < n }

func (r *run) left() []string {
	var all []string
	for _, pool := range r.pools {
		conn := pool.Get()
		for _, key := range r.kind.locks(r.key) {
			kind, _ := redis.String(conn.Do("TYPE", key))
			if kind == "none" {
				continue
			}
			value := kind
			if kind == "string" {
				value, _ = redis.String(conn.Do("GET", key))
			}
			if r.kind.old {
				var ms int64
				if _, err := fmt.Sscanf(value, "%d", &ms); err == nil && ms < time.Now().UnixMilli() {
					continue
				}
			}
			ttl, _ := redis.Int64(conn.Do("PTTL", key))
			all = append(all, fmt.Sprintf("%s = %s for %d ms", key, value, ttl))
		}
		_ = conn.Close()
	}
	return all
}
