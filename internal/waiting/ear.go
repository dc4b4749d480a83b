package waiting

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/line"
)

// ear listens for the invalidations of one of several servers, beside the line's connection to it.
type ear struct {
	session  *session
	addr     string
	listener redis.Conn
	once     sync.Once
}

// ears are the events of the session's lines.
type ears struct {
	session *session
	id      int64 // of the listener at home
}

// Setup has the reads of a fresh connection tracked.
func (e *ears) Setup(addr string, conn redis.Conn) error {
	if addr == e.session.home {
		return e.session.track(conn, e.id)
	}
	return e.session.setUpEar(addr, conn)
}

// Down is told that a connection broke. That to the home ends the session; of any other only the ear.
func (e *ears) Down(addr string, err error) { e.session.down(addr, err) }

// setUpEar makes the ear for a fresh connection of the line, and has its reads tracked. A server without
// tracking leaves the whole session without it.
func (s *session) setUpEar(addr string, conn redis.Conn) error {
	if mode, _ := s.offers(); mode != Tracking {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.hub.opts.ReplyTimeout)
	defer cancel()
	listener, err := s.hub.opts.Servers.DialAddr(ctx, addr)
	if err != nil {
		return fmt.Errorf("connect the listener: %w", err)
	}
	e := &ear{session: s, addr: addr, listener: listener}
	id, err := s.identify(listener)
	if err == nil {
		if err = listener.Send("SUBSCRIBE", invalidations); err == nil {
			err = listener.Flush()
		}
	}
	if err == nil {
		_, err = redis.ReceiveWithTimeout(listener, s.hub.opts.ReplyTimeout)
	}
	if err == nil {
		err = s.track(conn, id)
	}
	if err != nil {
		e.close()
		return err
	}
	s.mu.Lock()
	if s.refused != nil { // this server has no tracking, or does not allow it: then nobody relies on any
		s.mode = Messages
		s.mu.Unlock()
		e.close()
		s.hub.degraded(s)
		return nil
	}
	if s.closed {
		s.mu.Unlock()
		e.close()
		return errors.New("the session is over")
	}
	before := s.ears[addr]
	s.ears[addr] = e
	s.mu.Unlock()
	if before != nil {
		before.close()
	}
	s.hub.background.Go(e.read)
	return nil
}

// read hands on invalidations. There are no pings when nobody asks anything of the server: a key that is
// waited for is looked at again by its timer, over the line, whose watchdog ends both.
func (e *ear) read() {
	for {
		raw, err := redis.ReceiveWithTimeout(e.listener, 0)
		if err != nil {
			break
		}
		if parts, ok := raw.([]any); ok && len(parts) == 3 {
			kind, _ := redis.String(parts[0], nil)
			channel, _ := redis.String(parts[1], nil)
			if channel == invalidations {
				e.session.dispatch(kind, channel, parts[2])
			}
		}
		runtime.Gosched() // as in session.read
	}
	e.close()
	s := e.session
	s.mu.Lock()
	current := s.ears[e.addr] == e
	if current {
		delete(s.ears, e.addr)
	}
	s.mu.Unlock()
	if current {
		// Without its ear the connection must not be read over: nothing would be heard of the keys.
		if lines, ok := s.line.(*line.Lines); ok {
			lines.Disconnect(e.addr, errors.New("its listener broke"))
		}
		s.hub.reset()
	}
}

func (e *ear) close() { e.once.Do(func() { _ = e.listener.Close() }) }

func (s *session) down(addr string, err error) {
	if addr == s.home {
		s.hub.lost(s, err)
		return
	}
	s.mu.Lock()
	e := s.ears[addr]
	delete(s.ears, addr)
	s.mu.Unlock()
	if e != nil {
		e.close()
	}
	s.hub.reset()
}

// degraded tells the fronts that a session offers less than it did.
func (h *Hub) degraded(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session == s {
		h.setMode(s.offers())
		h.each(Reset)
	}
}

// reset tells every front that anything may have happened.
func (h *Hub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(Reset)
}
