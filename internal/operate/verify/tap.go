package verify

import (
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
	marks  map[string]shown
	moved  chan struct{} // closed and renewed when a mark arrives
	err    error         // why it ended, nil while it runs
}

// shown is what had come by when a look did.
type shown struct {
	counts  counts
	touches map[place]*deeds // since the look before; with reader.anybody
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
	t := &tap{conn: conn, began: time.Now(), done: make(chan struct{}), reader: reader, marks: map[string]shown{}, moved: make(chan struct{})}
	t.reader.counts = counts{}
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
	if mark := t.reader.take(text, cut); mark != "" {
		s := shown{counts: maps.Clone(t.reader.counts)}
		if t.reader.anybody {
			s.touches, t.reader.touches = t.reader.touches, nil
		}
		t.marks[mark] = s
		close(t.moved)
		t.moved = make(chan struct{})
	}
	if t.reader.garbled > 0 {
		return errors.New("a line of MONITOR could not be read")
	}
	return nil
}

// at returns what had come by at a look, and whether that is or may still become known.
func (t *tap) at(mark string) (s shown, known, pending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, known = t.marks[mark]
	return s, known, !known && t.err == nil
}

// rest returns what was touched and belongs to no mark, each once.
func (t *tap) rest() (touches map[place]*deeds) {
	t.mu.Lock()
	defer t.mu.Unlock()
	touches, t.reader.touches = t.reader.touches, nil
	return touches
}

func (t *tap) forget(mark string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.marks, mark)
}

// await waits until a look has come by in the stream, the stream has ended, or a moment has passed.
func (t *tap) await(ctx context.Context, mark string) {
	timer := time.NewTimer(catchUp)
	defer timer.Stop()
	for {
		t.mu.Lock()
		_, known := t.marks[mark]
		moved := t.moved
		t.mu.Unlock()
		if known {
			return
		}
		select {
		case <-moved:
		case <-t.done:
			return
		case <-timer.C:
			return
		case <-ctx.Done():
			return
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
