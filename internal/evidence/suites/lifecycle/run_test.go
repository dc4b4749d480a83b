package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
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
	late    lateness
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

// one is one lock that a client got.
type one struct {
	c         *client
	ctx       context.Context
	lock      lock
	span      time.Duration
	good      atomic.Int64  // when it was acquired or extended last, in the run's nanoseconds
	releasing atomic.Bool   // a release was begun
	over      chan struct{} // closed when the sequence has no more to do with it
}

// client is one process of a sequence.
type client struct {
	*run
	id     int
	routes []*redistest.Route
	pools  []*redis.Pool
	locker locker
	lock   *one

	decide   sync.Mutex
	sent     int
	happens  map[int]redistest.Happening
	observed [16]atomic.Int64
	unknown  atomic.Bool // something of it may be on the server, and somebody was told
	outFor   bool        // it has the server out of memory
	few      bool        // it has fewer rights than it wants
	last     atomic.Pointer[one]
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

func (c *client) openLocker() error {
	var pools []lockmigrate.Pool
	c.pools = nil
	for _, route := range c.routes {
		dial := func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, "tcp", "", redis.DialContextFunc(route.Dial), redis.DialUsername(c.user), redis.DialPassword("secret"),
				redis.DialReadTimeout(time.Second), redis.DialWriteTimeout(time.Second))
		}
		pool := &redis.Pool{MaxIdle: 2, DialContext: dial}
		c.pools = append(c.pools, pool)
		pools = append(pools, pool)
	}
	t := c.terms
	t.observer = lockmigrate.ObserverFunc(c.observe)
	l, err := c.kind.open(pools, t)
	c.locker = l
	return err
}

// closeLocker closes what the client has, and looks that nothing is left of it.
func (c *client) closeLocker() {
	start := time.Now()
	c.locker.Close()
	for _, p := range c.pools {
		_ = p.Close()
	}
	if took := time.Since(start); took > returnsIn+c.site.late.most() {
		c.fail("client %d: Close took %v", c.id, took)
	}
	if l := c.lock; l != nil {
		select {
		case <-l.ctx.Done():
		case <-time.After(slack + c.site.late.most()):
			if c.kind.renews {
				c.fail("client %d: the Locker is closed and its holder's context goes on", c.id)
			} else if end := l.end(); c.now() < end {
				break // its deadline is watched by the sequence
			}
		}
		c.drop(l)
	}
	for i, route := range c.routes {
		if !eventually(time.Second+c.site.late.most(), func() bool { return route.Open() == 0 }) {
			c.fail("client %d: %d connections to server %d are open after Close", c.id, route.Open(), i)
		}
	}
}

func (c *client) decideOn(words []string) redistest.Happening {
	c.decide.Lock()
	defer c.decide.Unlock()
	if words[0] == "AUTH" {
		return redistest.Happening{}
	}
	c.sent++
	h, ok := c.happens[c.sent]
	if ok {
		delete(c.happens, c.sent)
		c.note("client %d: %s %.40s: %+v", c.id, words[0], strings.Join(words[1:], " "), h)
	}
	return h
}

func (c *client) observe(e lockmigrate.Event) {
	c.observed[e.Kind].Add(1)
	if errors.Is(e.Err, lockmigrate.ErrUnknownOutcome) {
		c.unknown.Store(true)
	}
	switch e.Kind {
	case lockmigrate.EventRenewed:
		if l := c.last.Load(); l != nil {
			l.good.Store(int64(c.now()))
		}
	case lockmigrate.EventLost, lockmigrate.EventFailed, lockmigrate.EventReleased:
		c.note("client %d: event %v %s %v %s", c.id, e.Kind, e.Op, e.Err, e.Note)
	}
}

// steps runs what the client does.
func (c *client) steps(steps []step) {
	for _, s := range steps {
		c.note("client %d: %v", c.id, s)
		c.step(s)
	}
}

func (c *client) step(s step) {
	route := c.routes[len(steps(s))%len(c.routes)]
	switch s.do {
	case acquire, try:
		c.take(s)
	case do:
		c.doWork(s)
	case inner:
		if c.lock != nil {
			c.doWork(s)
		}
	case hold:
		time.Sleep(s.d)
	case renew:
		if c.lock != nil {
			c.extend(s)
		}
	case release:
		if c.lock != nil {
			c.give(s)
		}
	case reopen:
		c.closeLocker()
		if err := c.openLocker(); err != nil {
			c.fail("client %d: %v", c.id, err)
		}
	case next:
		c.decide.Lock()
		c.happens[c.sent+s.n] = s.what
		c.decide.Unlock()
	case partition:
		route.Partition()
	case halfOpen:
		route.HalfOpen()
	case stall: // commands run, and no reply comes for a while
		for _, route := range c.routes {
			route.HalfOpen()
		}
		time.AfterFunc(s.d, func() {
			for _, route := range c.routes {
				route.Heal()
			}
		})
	case refuse:
		route.Refuse(false)
	case hang:
		route.Refuse(true)
	case cut:
		route.Cut()
	case heal:
		c.heal()
	case rights:
		c.few = true
		if err := c.rights(strings.TrimSpace(s.rules)); err != nil {
			c.fail("rights: %v", err)
		}
	case memoryOut:
		if !c.outFor {
			c.outFor = true
			if err := c.site.outOfMemory(true); err != nil {
				c.fail("memory: %v", err)
			}
		}
	}
}

// steps makes a choice among routes that depends on the step alone.
func steps(s step) string { return s.String() }

func (c *client) heal() {
	for _, route := range c.routes {
		route.Heal()
	}
	c.decide.Lock()
	clear(c.happens)
	c.decide.Unlock()
	if c.few {
		c.few = false
		if err := c.rights("~*"); err != nil {
			c.fail("rights: %v", err)
		}
	}
	if c.outFor {
		c.outFor = false
		if err := c.site.outOfMemory(false); err != nil {
			c.fail("memory: %v", err)
		}
	}
}

// rights is the run's, for the client's switch.
func (c *client) rights(rules string) error { return c.run.rights(rules) }

// context returns the context of a step.
func (c *client) context(s step, long time.Duration) (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if c.kind.owners {
		ctx = modern.WithOwner(ctx, "client"+strconv.Itoa(c.id))
	}
	if s.early {
		return context.WithTimeout(ctx, s.d)
	}
	return context.WithTimeout(ctx, long)
}

// back looks that a call came back in time after its context.
func (c *client) back(what string, ctx context.Context, start time.Time) {
	deadline, _ := ctx.Deadline()
	if late := time.Since(deadline); late > returnsIn+c.site.late.most() {
		c.fail("client %d: %s came back %v after its context, %v after it began", c.id, what, late, time.Since(start))
	}
}

func (c *client) take(s step) {
	if c.lock != nil {
		return
	}
	ctx, cancel := c.context(s, time.Second)
	defer cancel()
	var k lock
	var err error
	start := time.Now()
	if s.do == try {
		k, err = c.locker.TryAcquire(ctx, c.key)
	} else {
		if s.d > 0 {
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, s.d)
			defer stop()
		}
		k, err = c.locker.Acquire(ctx, c.key)
	}
	c.back("acquire", ctx, start)
	if err != nil {
		c.note("client %d: not acquired: %v", c.id, err)
		c.left(err)
		return
	}
	c.lock = c.holds(k, k.Context())
	c.note("client %d: acquired", c.id)
}

// left notes whether something of an acquisition may have stayed on the server. In the old scheme that is so whenever
// its caller did not wait for the reply: a value on the key may be another client's, so it is not given back.
func (c *client) left(err error) {
	if errors.Is(err, lockmigrate.ErrUnknownOutcome) || c.kind.old && errors.Is(err, context.DeadlineExceeded) {
		c.unknown.Store(true)
	}
}

// holds notes that the client holds the lock, looks that nobody else does, and watches its deadline.
func (c *client) holds(k lock, ctx context.Context) *one {
	l := &one{c: c, lock: k, ctx: ctx, span: c.terms.ttl, over: make(chan struct{})}
	l.good.Store(int64(c.now()))
	c.last.Store(l)
	c.mu.Lock()
	if c.kind.excludes && ctx.Err() == nil {
		for other := range c.held {
			if other.c != c && other.ctx.Err() == nil && !other.releasing.Load() && c.now() < other.certain() {
				c.mu.Unlock()
				c.fail("%s: clients %d and %d hold the lock", redistest.Violated, other.c.id, c.id)
				c.mu.Lock()
			}
		}
	}
	c.held[l] = true
	c.mu.Unlock()
	c.open.Go(l.watch)
	return l
}

// end is when the lock is over if nothing has extended it since, on the run's clock.
func (l *one) end() time.Duration { return time.Duration(l.good.Load()) + l.span }

// certain is until when the lock is not over in any case: by its own word, or by when a command was sent at the
// earliest whose reply has come.
func (l *one) certain() time.Duration {
	if told, ok := l.lock.(interface{ Expiry() time.Time }); ok {
		return told.Expiry().Sub(l.c.began)
	}
	return l.end() - 2*l.c.terms.reply - l.c.site.late.most()
}

// watch sees to it that the holder's context is over by its deadline.
func (l *one) watch() {
	for {
		bound := l.end() + slack + l.c.site.late.most()
		select {
		case <-l.ctx.Done():
			return
		case <-l.over:
			return
		case <-time.After(max(bound-l.c.now(), time.Millisecond)):
		}
		if l.ctx.Err() == nil && l.c.now() > l.end()+slack+l.c.site.late.most() {
			l.c.fail("client %d: the lock was good until %v, and its context goes on at %v", l.c.id, l.end(), l.c.now())
			return
		}
	}
}

// drop ends the sequence's interest in a lock that is not held any more.
func (c *client) drop(l *one) {
	if c.lock == l {
		c.lock = nil
	}
	c.mu.Lock()
	delete(c.held, l)
	c.mu.Unlock()
	if l.ctx.Err() != nil {
		close(l.over)
	} // else its deadline is watched on
}

func (c *client) extend(s step) {
	ctx, cancel := c.context(s, 2*time.Second)
	defer cancel()
	start, end := time.Now(), c.lock.end()
	err := c.lock.lock.Renew(ctx)
	c.back("renew", ctx, start)
	if err == nil {
		c.lock.good.Store(int64(c.now()))
	} else {
		c.note("client %d: not renewed: %v", c.id, err)
	}
	c.refused("renew", err)
	c.falsely("renew", err, end)
}

func (c *client) give(s step) {
	l := c.lock
	end := l.end()
	for attempt := 0; ; attempt++ {
		ctx, cancel := c.context(s, 2*time.Second)
		start := time.Now()
		l.releasing.Store(true)
		err := l.lock.Release(ctx)
		c.back("release", ctx, start)
		cancel()
		if err != nil {
			c.note("client %d: not released: %v", c.id, err)
		}
		c.refused("release", err)
		c.falsely("release", err, end)
		if errors.Is(err, lockmigrate.ErrUnknownOutcome) && c.rough {
			c.unknown.Store(true)
		}
		if err == nil || errors.Is(err, lockmigrate.ErrReleased) || errors.Is(err, lockmigrate.ErrLost) || c.rough {
			break
		}
		if attempt == 3 { // what is in the way is taken away
			c.heal()
		}
		if attempt == 8 {
			c.fail("client %d: the release fails with nothing in its way: %v", c.id, err)
			break
		}
		s.early = false
		time.Sleep(20 * time.Millisecond << attempt) // a connection that failed is tried again after a pause
	}
	c.drop(l)
}

// refused fails for the refusals that no release and no renewal may have.
func (c *client) refused(what string, err error) {
	if err == nil || c.rough {
		return
	}
	injected := func() bool { // a refusal that the route has made up
		for _, steps := range c.clients {
			for _, s := range steps {
				if s.what.Refused != "" {
					return true
				}
			}
		}
		return false
	}
	if text := err.Error(); (strings.Contains(text, "OOM") || what == "release" && strings.Contains(text, "user")) && !injected() {
		c.fail("client %d: a %s was refused: %v", c.id, what, err)
	}
}

// falsely fails for a loss that nobody else can have caused.
func (c *client) falsely(what string, err error, end time.Duration) {
	if errors.Is(err, lockmigrate.ErrLost) && !c.rough && c.now() < end-50*time.Millisecond {
		c.fail("client %d: %s says that the lock is lost, and there is nobody else: %v", c.id, what, err)
	}
}

func (c *client) doWork(s step) {
	ctx, cancel := c.context(step{}, 2*time.Second)
	defer cancel()
	if s.early {
		ctx, cancel = context.WithTimeout(ctx, s.d+5*time.Millisecond)
		defer cancel()
	}
	outer := c.lock
	var cause error
	inside := false
	start := time.Now()
	err := c.locker.Do(ctx, c.key, func(ctx context.Context) error {
		inside = true
		l := outer
		if l == nil {
			l = c.holds(nil, ctx)
			defer func() {
				l.releasing.Store(true)
				c.drop(l)
			}()
		}
		select {
		case <-ctx.Done():
		case <-time.After(s.d):
		}
		cause = context.Cause(ctx)
		return ctx.Err()
	})
	c.back("do", ctx, start)
	if c.left(err); inside && err != nil {
		c.unknown.Store(true) // nobody can release once more what Do could not
	}
	if err != nil {
		c.note("client %d: do: %v, inside %v, cause %v", c.id, err, inside, cause)
	}
	if errors.Is(cause, lockmigrate.ErrLost) && !errors.Is(err, lockmigrate.ErrLost) {
		c.fail("client %d: Do hides the loss of the lock: %v, the work's context ended with %v", c.id, err, cause)
	}
	if inside {
		c.refused("release", err)
	}
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

// lateness is how late timers are on this machine at present.
type lateness struct{ recent [64]atomic.Int64 }

func (l *lateness) measure(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		time.Sleep(20 * time.Millisecond)
		l.recent[i%len(l.recent)].Store(int64(time.Since(start) - 20*time.Millisecond))
	}
}

// most is twice the most of the last second and a bit.
func (l *lateness) most() time.Duration {
	most := int64(0)
	for i := range l.recent {
		most = max(most, l.recent[i].Load())
	}
	return time.Duration(2 * most)
}
