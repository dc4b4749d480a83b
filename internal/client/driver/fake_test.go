package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// fake is a redis.Conn in memory whose writes and replies the test controls.
type fake struct {
	mu      sync.Mutex
	got     []string // commands that were sent
	flushed int
	flushes int           // that had something to write
	gate    chan struct{} // if set, each Flush takes one
	rogue   bool          // replies come whether or not somebody asked
	asked   chan struct{} // one for each command that was flushed
	replies chan any      // an error breaks the connection at once
	closed  chan struct{}
	once    sync.Once
}

func newFake() *fake {
	return &fake{asked: make(chan struct{}, 4096), replies: make(chan any, 4096), closed: make(chan struct{})}
}

func (f *fake) dial(context.Context) (redis.Conn, error) { return f, nil }

func (f *fake) Close() error { f.once.Do(func() { close(f.closed) }); return nil }
func (f *fake) Err() error   { return nil }
func (f *fake) Do(string, ...any) (any, error) {
	return nil, errors.New("a pipe sends and receives")
}

func (f *fake) Send(name string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, fmt.Sprintf("%s%v", name, args))
	return nil
}

func (f *fake) Flush() error {
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-f.closed:
			return errClosed
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flushed < len(f.got) {
		f.flushes++
	}
	for ; f.flushed < len(f.got); f.flushed++ {
		f.asked <- struct{}{}
	}
	return nil
}

func (f *fake) Receive() (any, error) {
	select {
	case r := <-f.replies:
		if err, ok := r.(error); ok {
			return nil, err
		}
		if f.rogue {
			return r, nil
		}
		select {
		case <-f.asked:
			return r, nil
		case <-f.closed:
			return nil, errClosed
		}
	case <-f.closed:
		return nil, errClosed
	}
}

var errClosed = errors.New("closed by the test")

func (f *fake) sent() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.got)
}

// writes counts the writes that had something to send.
func (f *fake) writes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flushes
}

func (f *fake) ReceiveWithTimeout(time.Duration) (any, error) { return f.Receive() }

func (f *fake) DoWithTimeout(_ time.Duration, name string, args ...any) (any, error) {
	return f.Do(name, args...)
}

func open(t testing.TB, dial func(ctx context.Context) (redis.Conn, error), change func(*SharedOptions)) *Shared {
	o := SharedOptions{
		Dial: dial,
		Now:  func() protocol.Instant { return protocol.InstantOf(time.Now()) },
	}
	if change != nil {
		change(&o)
	}
	l := NewShared(o)
	t.Cleanup(func() { l.Close(); l.Wait() })
	return l
}

// over opens a Shared over a connection in memory.
func over(t testing.TB, f *fake, change func(*SharedOptions)) *Shared {
	return open(t, nil, func(o *SharedOptions) {
		o.Dial = f.dial
		if change != nil {
			change(o)
		}
	})
}

// ask sends a command of that name and returns the channel that its error comes on.
func ask(ctx context.Context, l *Shared, name string) <-chan error {
	got := make(chan error, 1)
	go func() {
		_, err := l.Request(ctx, wire.Plain(name))
		got <- err
	}()
	return got
}

// queuedUp waits until n commands wait for the writer.
func queuedUp(t testing.TB, l *Shared, n uint32) {
	t.Helper()
	k := l.only.link.Load()
	redistest.Await(t, "it is queued", func() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.tail-k.next == n })
}
