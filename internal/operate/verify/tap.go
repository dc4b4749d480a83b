package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	stream "github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// tap is one MONITOR of one server. It reads until it is closed, or until the connection breaks.
type tap struct {
	conn  *stream.Monitor
	began time.Time
	done  chan struct{}

	mu      sync.Mutex
	traffic traffic
	marks   map[string]counts // by mark: what was counted before that look
	moved   chan struct{}     // closed and renewed when a mark arrives
	err     error             // why it ended, nil while it runs
}

// openTap begins to read what a server runs. Prefix begins the marks of its looks. Saw is told of each command of a legacy client, one call at a time.
func openTap(ctx context.Context, end *endpoint.Endpoint, addr, prefix string, matches func(string) bool, saw func(sighting)) (*tap, error) {
	conn, err := stream.OpenMonitor(ctx, end, addr, nil)
	var refused redis.Error
	if errors.As(err, &refused) {
		err = fmt.Errorf("MONITOR is refused: %w", err)
	}
	if err != nil {
		return nil, err
	}
	t := &tap{
		conn: conn, began: time.Now(), done: make(chan struct{}),
		traffic: traffic{matches: matches, saw: saw, prefix: prefix}, marks: map[string]counts{}, moved: make(chan struct{}),
	}
	go t.read()
	return t, nil
}

var errClosed = errors.New("closed")

func (t *tap) read() {
	defer close(t.done)
	var err error
	for err == nil {
		var text string
		var cut bool
		if text, cut, err = t.conn.Line(); err == nil {
			err = t.take(text, cut)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

func (t *tap) take(text string, cut bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mark := t.traffic.take(text, cut); mark != "" {
		t.marks[mark] = t.traffic.counts
		close(t.moved)
		t.moved = make(chan struct{})
	}
	if t.traffic.garbled > 0 {
		return errors.New("a line of MONITOR could not be read")
	}
	return nil
}

// at returns what was counted before a look, and whether that is or may still become known.
func (t *tap) at(mark string) (c counts, known, pending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known = t.marks[mark]
	return c, known, !known && t.err == nil
}

func (t *tap) forget(mark string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.marks, mark)
}

// await waits until a look has come by in the stream, the stream has ended, or a moment has passed.
func (t *tap) await(ctx context.Context, mark string) {
	awaitMark(ctx, t.done, func() (bool, <-chan struct{}) {
		t.mu.Lock()
		defer t.mu.Unlock()
		_, known := t.marks[mark]
		return known, t.moved
	})
}

// awaitMark waits until a look has come by, what shows it has ended, or a moment has passed. Asked is whether the look
// has come by, and a channel that is closed at the next one.
func awaitMark(ctx context.Context, ended <-chan struct{}, asked func() (bool, <-chan struct{})) bool {
	timer := time.NewTimer(catchUp)
	defer timer.Stop()
	for {
		known, moved := asked()
		if known {
			return true
		}
		select {
		case <-moved:
		case <-ended:
			return false
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// catchUp is how far the stream may be behind a look. One that is farther makes the server hold its output.
const catchUp = 5 * time.Second

// ended returns why the tap ended, nil while it runs.
func (t *tap) ended() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// close ends it. The marks stay.
func (t *tap) close() {
	t.mu.Lock()
	if t.err == nil {
		t.err = errClosed
	}
	t.mu.Unlock()
	_ = t.conn.Close()
	<-t.done
}
