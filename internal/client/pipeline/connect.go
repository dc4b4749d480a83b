package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/topology"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// connect returns the connection, and makes one when there is none; callers share the attempt.
func (l *Line) connect(ctx context.Context) (*link, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	if k := l.link.Load(); k != nil {
		l.mu.Unlock()
		return k, nil
	}
	if l.attempt == nil {
		l.attempt = &attempt{done: make(chan struct{})}
		var pause time.Duration
		if l.failures > 0 {
			pause = time.Until(l.notBefore)
		}
		l.background.Go(func() { l.dial(pause) })
	}
	a := l.attempt
	l.mu.Unlock()
	select {
	case <-a.done:
		return a.link, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dial makes an attempt, after a pause where the last one has just failed. Those who need the connection wait for it:
// the error of the last attempt says nothing about what the next one finds.
func (l *Line) dial(pause time.Duration) {
	topology.Sleep(l.life, pause)
	ctx, cancel := context.WithTimeout(l.life, l.opts.ReplyTimeout)
	defer cancel()
	k := newLink(l)
	conn, err := l.opts.Dial(rawconn.Expecting(ctx, k.due))
	if err == nil {
		if err = l.setup(ctx, conn); err != nil {
			_ = conn.Close() // the setup's error says it all
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.attempt
	l.attempt = nil
	defer close(a.done)
	if err == nil && l.closed {
		_ = conn.Close()
		err = ErrClosed
	}
	if err != nil {
		a.err = err
		l.notBefore = time.Now().Add(l.opts.Retry << min(l.failures, 4))
		l.failures++
		return
	}
	l.failures = 0
	a.link = k
	k.start(conn)
	l.link.Store(k)
}

// setup is cut short by the end of ctx: closing the connection is all that redigo offers for it.
func (l *Line) setup(ctx context.Context, conn redis.Conn) error {
	if l.opts.Setup == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := l.opts.Setup(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
		if l.opts.Down != nil {
			l.opts.Down(conn, err)
		}
	}
	return err
}

// abandon gives the present link up, if there is one.
func (l *Line) abandon() {
	if k := l.link.Load(); k != nil {
		l.link.CompareAndSwap(k, nil)
		k.retire()
	}
}

// leave gives a link up whose server has said that it is the wrong one, and tells whether another command is to
// go over another link. Where that leads to the same server, the pauses between two of them double.
func (l *Line) leave(k *link) bool {
	l.mu.Lock()
	if l.link.Load() != k {
		l.mu.Unlock()
		return !l.closed
	}
	const most = 6
	since := time.Since(l.left)
	if since > l.opts.Retry<<(most+1) {
		l.leaves = 0
	}
	if l.leaves > 0 && since < l.opts.Retry<<min(l.leaves-1, most) {
		l.mu.Unlock()
		return false
	}
	l.leaves++
	l.left = time.Now()
	l.link.CompareAndSwap(k, nil)
	l.mu.Unlock()
	k.retire()
	return true
}

// broke is told by a link that it is over.
func (l *Line) broke(k *link, err error) {
	l.link.CompareAndSwap(k, nil)
	if l.opts.Down != nil && !errors.Is(err, ErrClosed) {
		l.opts.Down(k.conn, err)
	}
}
