package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// tap is one MONITOR of one server. It reads until it is closed, or until the connection breaks.
type tap struct {
	conn  *traffic.Monitor
	began time.Time
	done  chan struct{}

	mu     sync.Mutex
	reader reader
	mark   string // of the look that came by last, and what had come by then
	counts counts
	acts   []act         // that nobody has taken
	moved  chan struct{} // closed and renewed when a mark arrives, or the end
	err    error         // why it ended, nil while it runs
}

// act is what was done to lock keys from one place between two marks.
type act struct {
	place
	*deeds
}

// openTap begins to read what a server runs.
func openTap(ctx context.Context, end *endpoint.Endpoint, addr string, reader reader) (*tap, error) {
	conn, err := traffic.OpenMonitor(ctx, end, addr, nil)
	var refused redis.Error
	if errors.As(err, &refused) {
		err = fmt.Errorf("MONITOR is refused: %w", err)
	}
	if err != nil {
		return nil, err
	}
	t := &tap{conn: conn, began: time.Now(), done: make(chan struct{}), reader: reader, moved: make(chan struct{})}
	t.reader.counts = counts{}
	go t.read()
	return t, nil
}

var (
	errClosed = errors.New("closed")
	errBehind = errors.New("it is behind: the server would have to hold its output")
)

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
	t.err = cmp.Or(t.err, err)
	close(t.moved)
}

func (t *tap) take(text string, cut bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mark := t.reader.take(text, cut); mark != "" {
		t.mark, t.counts = mark, maps.Clone(t.reader.counts)
		t.acts = t.untaken()
		close(t.moved)
		t.moved = make(chan struct{})
	}
	if t.reader.garbled > 0 {
		return errors.New("a line of MONITOR could not be read")
	}
	return nil
}

// untaken are the acts of so far.
func (t *tap) untaken() []act {
	all := t.acts
	for at, did := range t.reader.touches {
		all = append(all, act{at, did})
	}
	t.reader.touches = nil
	return all
}

// rest takes what was done so far, also since the last mark.
func (t *tap) rest() []act {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.untaken()
	t.acts = nil
	return all
}

// await waits until a look has come by in the stream, and takes what had come by then. An error says why it has not.
func (t *tap) await(ctx context.Context, mark string) (counts, []act, error) {
	late := time.NewTimer(catchUp)
	defer late.Stop()
	for {
		t.mu.Lock()
		if t.mark == mark {
			defer t.mu.Unlock()
			acts := t.acts
			t.acts = nil
			return t.counts, acts, nil
		}
		err, moved := t.err, t.moved
		t.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		select {
		case <-moved:
		case <-late.C:
			return nil, nil, errBehind
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// catchUp is how far the stream may be behind a look. One that is farther makes the server hold its output.
const catchUp = 5 * time.Second

// close ends it.
func (t *tap) close() {
	t.mu.Lock()
	if t.err == nil {
		t.err = errClosed
	}
	t.mu.Unlock()
	_ = t.conn.Close()
	<-t.done
}
