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
