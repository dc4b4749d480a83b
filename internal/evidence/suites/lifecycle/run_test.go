package lifecycle

import (
	"fmt"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
)

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
		prepare(r.servers[0], r.plan)
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
