package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// What a sequence may cost at most, beside what its locks say. The machine may be busy: each bound has the
// lateness of timers on top.
const (
	slack      = time.Second     // of a context's end behind its deadline
	staysFor   = time.Second     // of what is on the server behind the TTL
	freeWait   = 5 * time.Second // of one who waits for a key that is free
	returnsIn  = 3 * time.Second // of a call whose context is over, and of Close
	grantClaim = 200 * time.Millisecond
)

// site is the servers that sequences share.
type site struct {
	servers []*redistest.Server
	admin   []*redis.Pool
	memory  int // which server runs out of memory; only strict sequences that know of it run there
	late    *redistest.Lateness
	crowds  chan struct{} // bounds how many sequences have a crowd at the key at once

	mu  sync.Mutex
	out int // how many sequences want it to be out of memory
}

// outOfMemory switches the memory of the server off and on; it stays off while any sequence wants that.
func (s *site) outOfMemory(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := "0"
	if on {
		s.out++
	} else {
		s.out--
	}
	if s.out > 0 {
		limit = "1"
	}
	conn := s.admin[s.memory].Get()
	defer conn.Close()
	_, err := conn.Do("CONFIG", "SET", "maxmemory", limit)
	return err
}

// run is one sequence under way.
type run struct {
	*plan
	site    *site
	user    string
	began   time.Time
	pools   []*redis.Pool // the admin's, of the servers that it uses
	servers []*redistest.Server
	members []*client

	mu     sync.Mutex
	notes  []string
	faults []string      // what it has found
	held   map[*one]bool // the locks that are held, of all clients
	open   sync.WaitGroup
}

func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf("%8.1f ms  ", float64(time.Since(r.began).Microseconds())/1000)+fmt.Sprintf(format, args...))
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

// start makes the clients of a sequence.
func (s *site) start(ctx context.Context, p *plan) (*run, error) {
	r := &run{plan: p, site: s, began: time.Now(), held: map[*one]bool{}}
	first, n := int(p.seed)%s.memory, max(p.kind.servers, 1)
	if p.memory {
		first = s.memory
	}
	if n > 1 {
		first = 0
	}
	r.servers, r.pools = s.servers[first:first+n], s.admin[first:first+n]
	r.user = "u" + p.terms.name
	if err := r.rights("~*"); err != nil {
		return nil, err
	}
	if p.kind.namespace {
		if err := prepare(ctx, r.pools[0], p); err != nil {
			return nil, err
		}
	}
	for i := range p.clients {
		c := &client{run: r, id: i, happens: map[int]redistest.Happening{}}
		for _, server := range r.servers {
			route := redistest.NewRoute(server.Addr)
			route.Decide = c.decideOn
			c.routes = append(c.routes, route)
		}
		r.members = append(r.members, c)
		if err := c.openLocker(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *run) rights(rules string) error {
	args := []any{"SETUSER", r.user, "reset", "on", ">secret", "+@all", "&*"}
	for _, rule := range strings.Fields(rules) {
		args = append(args, rule)
	}
	for _, pool := range r.pools {
		conn := pool.Get()
		_, err := conn.Do("ACL", args...)
		_ = conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func eventually(bound time.Duration, yes func() bool) bool {
	for end := time.Now().Add(bound); ; time.Sleep(2 * time.Millisecond) {
		if yes() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}
