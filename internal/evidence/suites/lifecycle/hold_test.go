package lifecycle

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

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

// watch sees to it that the holder's context is over by its deadline.
func (l *one) watch() {
	for {
		bound := l.end() + slack
		select {
		case <-l.ctx.Done():
			return
		case <-l.over:
			return
		case <-time.After(max(bound-l.c.now(), time.Millisecond)):
		}
		if l.ctx.Err() == nil && l.c.now() > l.end()+slack {
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
