package lifecycle

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/modern"
)

// client is one process of a sequence.
type client struct {
	*run
	id      int
	process *world.Process
	routes  []*world.Route
	pools   []*redis.Pool
	locker  lockmigrate.Locker
	lock    *one

	decide   sync.Mutex
	sent     int
	happens  map[int]world.Fault
	observed sync.Map    // of *atomic.Int64 by lockmigrate.EventKind
	unknown  atomic.Bool // something of it may be on the server, and somebody was told
	full     bool        // it has the server out of memory
	few      bool        // it has fewer rights than it wants
	last     atomic.Pointer[one]
}

func (c *client) openLocker() error {
	var pools []lockmigrate.Pool
	c.pools = nil
	for _, route := range c.routes {
		pool := route.Pool()
		c.pools = append(c.pools, pool)
		pools = append(pools, pool)
	}
	t := c.terms
	t.observer = c.observe
	l, err := c.variant.open(pools, t)
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
	if took := time.Since(start); took > closesIn {
		c.fail("client %d: Close took %v", c.id, took)
	}
	if l := c.lock; l != nil {
		select {
		case <-l.ctx.Done():
		case <-time.After(slack):
			if c.variant.renews {
				c.fail("client %d: the Locker is closed and its holder's context goes on", c.id)
			} else if end := l.end(); c.now() < end {
				break // its deadline is watched by the sequence
			}
		}
		c.drop(l)
	}
	for i, route := range c.routes {
		if !eventually(time.Second, func() bool { return route.Open() == 0 }) {
			c.fail("client %d: %d connections to server %d are open after Close", c.id, route.Open(), i)
		}
	}
}

func (c *client) decideOn(words []string) world.Fault {
	c.decide.Lock()
	defer c.decide.Unlock()
	if c.variant.deaf && words[0] == "SUBSCRIBE" {
		return world.Fault{Refused: "NOPERM this user has no permissions to run the 'subscribe' command"}
	}
	c.sent++
	h, ok := c.happens[c.sent]
	if ok {
		delete(c.happens, c.sent)
		c.note("client %d: %s %.40s: %+v", c.id, words[0], strings.Join(words[1:], " "), h)
	}
	return h
}

func (c *client) count(k lockmigrate.EventKind) *atomic.Int64 {
	n, _ := c.observed.LoadOrStore(k, new(atomic.Int64))
	return n.(*atomic.Int64)
}

func (c *client) observe(e lockmigrate.Event) {
	c.count(e.Kind).Add(1)
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
		c.process.Sleep(s.d)
	case freeze:
		c.process.Freeze()
		time.Sleep(s.d)
		c.process.Thaw()
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
		settle()
	case heal:
		c.heal()
		settle()
	case rights:
		c.few = true
		c.rights(s.rules)
	case memoryOut:
		c.full = true
		c.servers[0].OutOfMemory(true)
	case stranger:
		time.Sleep(time.Duration(1 + c.id)) // two clients' are not of one instant
		c.servers[1].Do("SET", c.key, "a stranger's", "NX", "PX", s.d.Milliseconds())
		time.AfterFunc(s.d/2, func() { c.servers[0].Do("DEL", c.key) })
	}
}

// settle lets everybody whom a change of the network woke hear of it before the client's next step. Else the scheduler says which comes first at this
// instant, the reader of a connection that was reset or the next command on it, and a seed has two verdicts.
func settle() { time.Sleep(time.Nanosecond) }

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
		c.rights("~*")
	}
	if c.full {
		c.full = false
		c.servers[0].OutOfMemory(false)
	}
}

// context returns the context of a step.
func (c *client) context(s step, long time.Duration) (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if c.variant.owners {
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
	bound := returnsIn
	if what == "do" {
		bound += doReturnsIn
	}
	if late := time.Since(deadline); late > bound {
		c.fail("client %d: %s came back %v after its context, %v after it began", c.id, what, late, time.Since(start))
	}
}

func (c *client) take(s step) {
	if c.lock != nil {
		return
	}
	ctx, cancel := c.context(s, time.Second)
	defer cancel()
	var k lockmigrate.Lock
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
	if errors.Is(err, lockmigrate.ErrUnknownOutcome) || c.variant.old && errors.Is(err, context.DeadlineExceeded) {
		c.unknown.Store(true)
	}
}

// one is one lock that a client got.
type one struct {
	c         *client
	ctx       context.Context
	lock      lockmigrate.Lock
	span      time.Duration
	good      atomic.Int64  // when it was acquired or extended last, in the run's nanoseconds
	releasing atomic.Bool   // a release was begun
	over      chan struct{} // closed when the sequence has no more to do with it
}

// holds notes that the client holds the lock, looks that nobody else does, and watches its deadline.
func (c *client) holds(k lockmigrate.Lock, ctx context.Context) *one {
	l := &one{c: c, lock: k, ctx: ctx, span: c.terms.ttl, over: make(chan struct{})}
	l.good.Store(int64(c.now()))
	c.last.Store(l)
	c.mu.Lock()
	if c.variant.excludes && ctx.Err() == nil {
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
	if late := c.now() - l.due(); late > slack {
		c.fail("client %d: was handed a lock %v after its deadline", c.id, late)
	}
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
	return l.end() - 2*l.c.terms.reply
}

// due is when the holder's context is over at the latest: where the lock has a word, no later than that. Of a lock of two halves one may be
// given back already.
func (l *one) due() time.Duration {
	if told, ok := l.lock.(interface{ Expiry() time.Time }); ok && !l.releasing.Load() {
		return min(l.end(), told.Expiry().Sub(l.c.began))
	}
	return l.end()
}

// watch sees to it that the holder's context is over by its deadline.
func (l *one) watch() {
	for {
		bound := l.due() + slack
		select {
		case <-l.ctx.Done():
			return
		case <-l.over:
			return
		case <-time.After(max(bound-l.c.now(), time.Millisecond)):
		}
		if l.ctx.Err() == nil && l.c.now() > l.due()+slack {
			l.c.fail("client %d: the lock was good until %v, and its context goes on at %v", l.c.id, l.due(), l.c.now())
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
