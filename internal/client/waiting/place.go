package waiting

import (
	"context"
	"errors"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
)

// place is one server that somebody waits on: a tracked connection for questions, and a listener beside it. They
// live and die together. Each server has its own, so that one that hangs is nothing to those who wait on others.
//
// As long as somebody waits there, it has a listener, or an attempt to get one is under way, or again is going to
// start one. All of it is guarded by the hub's mu.
type place struct {
	addr     string // empty: the only server, or, of several, one that is not known at the moment
	listener *listener
	born     time.Time     // when the listener came
	starting chan struct{} // closed when the attempt that is under way is over
	began    time.Time     // when that attempt did
	failures int           // attempts in a row that came to nothing, or to connections that broke at once
	again    *time.Timer   // starts the next attempt; nil when none is due
	behind   bool          // somebody waits here who asked without being listened for
	queues   int           // that are waited in here
}

func (p *place) mode() Mode {
	if p == nil || p.listener == nil {
		return Polling
	}
	return p.listener.mode
}

// tracked is one life of the tracked connections, from the first waiter until nobody has waited for a while.
type tracked struct{ conn *driver.Shared }

// place returns the place of a server. The caller holds mu.
func (h *Hub) place(addr string) *place {
	p := h.places[addr]
	if p == nil {
		p = &place{addr: addr}
		h.places[addr] = p
	}
	return p
}

// put has a queue waited in at a server. The caller holds mu.
func (h *Hub) put(q *queue, addr string) {
	if q.place != nil {
		q.place.queues--
	}
	q.place = h.place(addr)
	q.place.queues++
}

// forget drops a place with all that belongs to it. The caller holds mu.
func (h *Hub) forget(p *place) {
	if p.again != nil {
		p.again.Stop()
		p.again = nil
	}
	if l := p.listener; l != nil {
		p.listener = nil
		h.background.Go(l.close)
	}
	delete(h.places, p.addr)
}

// look sets the hub's mode. The caller holds mu.
func (h *Hub) look(why error) {
	mode, offered := Tracking, false
	for _, p := range h.places {
		if p.queues > 0 || p.listener != nil {
			mode, offered = min(mode, p.mode()), true
		}
	}
	if !offered {
		mode = Polling
	}
	h.setMode(mode, why)
}

// listenPatience is how long a waiter waits to be listened for before it asks. A connection takes a few round trips, and
// longer on a busy machine. It counts from the beginning of an attempt: who comes later waits for less, or not at all, or a
// connection that hangs would hold up one after the other.
const listenPatience = 500 * time.Millisecond

// listen makes sure that a queue is listened for, or has tried to as far as patience goes: what it cannot have
// now it gets later, and a Reset tells. A connection that cannot be made holds nobody up, because there is another
// way to ask.
func (h *Hub) listen(ctx context.Context, q *queue) error {
	if !h.wants(q) {
		return nil
	}
	patience, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	addr := ""
	if h.opts.Servers != nil {
		addr, _ = h.opts.Servers.Locate(patience, q.key) // else the place of the unknown finds it out
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tracked == nil && !h.closed {
		h.track()
	}
	if q.place == nil || h.places[q.place.addr] != q.place {
		q.place = nil
		h.put(q, addr)
	}
	for {
		p := q.place
		if h.closed || p.listener != nil || p.again != nil {
			break
		}
		if p.starting == nil {
			h.begin(p)
		}
		starting, hangs := p.starting, time.NewTimer(time.Until(p.began.Add(listenPatience)))
		h.mu.Unlock()
		settled := false
		select {
		case <-starting:
			settled = true
		case <-hangs.C:
		case <-patience.Done():
		}
		hangs.Stop()
		h.mu.Lock()
		if !settled || patience.Err() != nil {
			p.behind = p.behind || p.listener == nil
			break
		}
	}
	if !h.closed {
		h.look(nil)
	}
	return context.Cause(ctx)
}

// wants tells whether a queue is still to be listened for.
func (h *Hub) wants(q *queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.closed && (q.place == nil || q.place.listener == nil)
}

// track opens the tracked connections, which are made when they are needed. The caller holds mu.
func (h *Hub) track() {
	t := &tracked{}
	t.conn = driver.NewShared(driver.SharedOptions{
		Dial: h.opts.Dial, Servers: h.opts.Servers, Now: h.opts.Now, ReplyTimeout: h.opts.ReplyTimeout, Ping: ping,
		Setup: func(addr string, conn redis.Conn) error { return h.setUp(t, addr, conn) },
		Down:  func(addr string, conn redis.Conn, err error) { h.down(t, addr, conn, err) },
	})
	h.tracked = t
}

// Renew gives the tracked connections up; others take their place.
func (h *Hub) Renew() {
	h.mu.Lock()
	t := h.tracked
	h.mu.Unlock()
	if t != nil {
		t.conn.Renew()
	}
}

// begin starts an attempt to connect. The caller holds mu, and there is neither a listener nor an attempt.
func (h *Hub) begin(p *place) {
	starting, t := make(chan struct{}), h.tracked
	p.starting, p.began = starting, time.Now()
	var keys []string
	if h.opts.Servers != nil {
		for key, q := range h.queues {
			if q.place == p {
				keys = append(keys, key)
			}
		}
	}
	h.background.Go(func() {
		moved, err := h.start(p.addr, keys, t)
		h.mu.Lock()
		defer h.mu.Unlock()
		close(starting)
		p.starting = nil
		if h.tracked == t && h.places[p.addr] == p {
			h.started(p, moved, err)
		}
	})
}

// start connects to a server, unless all the keys that are waited for there have moved; it returns those that
// have, and where to.
func (h *Hub) start(addr string, keys []string, t *tracked) (moved map[string]string, err error) {
	ctx, cancel := context.WithTimeout(h.life, h.opts.ReplyTimeout)
	defer cancel()
	if h.opts.Servers != nil {
		moved = make(map[string]string)
		for _, key := range keys {
			now, err := h.opts.Servers.Locate(ctx, key)
			if err != nil {
				return moved, err
			}
			if now != addr {
				moved[key] = now
			}
		}
		if addr == "" || len(keys) > 0 && len(moved) == len(keys) {
			return moved, nil
		}
	}
	if err = t.conn.Connect(ctx, addr); err != nil && h.opts.Servers != nil {
		h.opts.Servers.Stale(addr)
	}
	return moved, err
}

// started takes what came of an attempt. The caller holds mu.
func (h *Hub) started(p *place, moved map[string]string, err error) {
	for key, addr := range moved {
		if q := h.queues[key]; q != nil && q.place == p {
			h.put(q, addr)
			q.place.behind = true
			if q.place.listener != nil {
				q.tell(Reset)
			} else if q.place.starting == nil && q.place.again == nil {
				h.begin(q.place)
			}
		}
	}
	switch {
	case p.listener != nil:
		if p.behind {
			p.behind = false
			h.each(Reset)
		}
		h.look(p.listener.refused)
		return
	case err == nil:
		err = errors.New("the connection broke as soon as it was made")
	}
	h.look(err)
	h.later(p)
}

// later has the next attempt made, after a pause. The caller holds mu.
func (h *Hub) later(p *place) {
	if p.queues == 0 {
		h.forget(p) // the next one who waits there tries at once
		return
	}
	p.behind = true
	p.failures++
	p.again = time.AfterFunc(retry<<min(p.failures-1, 6), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.places[p.addr] != p || p.again == nil {
			return
		}
		p.again = nil
		switch {
		case p.queues == 0:
			h.forget(p)
		case p.listener == nil && p.starting == nil:
			h.begin(p)
		}
	})
}

// setUp makes the listener for a fresh tracked connection.
func (h *Hub) setUp(t *tracked, addr string, conn redis.Conn) error {
	ctx, cancel := context.WithTimeout(h.life, h.opts.ReplyTimeout)
	defer cancel()
	if h.opts.Opened != nil {
		h.opts.Opened(conn)
	}
	h.mu.Lock()
	channels := h.channelsAt(addr)
	h.mu.Unlock()
	l, err := h.dialListener(ctx, addr, conn, channels)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tracked != t {
		h.background.Go(l.close)
		return driver.ErrClosed
	}
	p := h.place(addr)
	if before := p.listener; before != nil { // the waiters of the old connection ask again
		h.background.Go(before.close)
		h.each(Reset)
	}
	p.listener, p.born = l, time.Now()
	l.begin()
	for _, channel := range h.channelsAt(addr) { // what was asked for while we connected
		l.subscribe(channel)
	}
	h.look(l.refused)
	return nil
}

// channelsAt returns what Subscribe asked for of a server. The caller holds mu.
func (h *Hub) channelsAt(addr string) (channels []string) {
	for channel, q := range h.channels {
		if q.place != nil && q.place.addr == addr {
			channels = append(channels, channel)
		}
	}
	return channels
}

// down is told that a tracked connection broke. It must not block.
func (h *Hub) down(t *tracked, addr string, conn redis.Conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.places[addr]
	if h.tracked == t && p != nil && p.listener != nil && p.listener.beside == conn {
		h.lost(p, err)
	}
}

// disconnected is told by a listener that its connection broke: the one beside it must not be read over any more, because
// nothing would be heard of the keys.
func (h *Hub) disconnected(l *listener, err error) {
	h.mu.Lock()
	p, t := h.places[l.addr], h.tracked
	if p == nil || p.listener != l {
		h.mu.Unlock()
		l.close()
		return
	}
	if t != nil {
		defer t.conn.Disconnect(l.addr, l.beside, err)
	}
	defer h.mu.Unlock()
	h.lost(p, err)
}

// lost takes the listener of a place away, and has it replaced. The caller holds mu.
func (h *Hub) lost(p *place, err error) {
	l := p.listener
	p.listener = nil
	h.background.Go(l.close)
	switch {
	case p.queues == 0:
		h.forget(p)
	case p.starting != nil:
		p.behind = true
	case time.Since(p.born) < retry:
		h.later(p)
	default: // the first attempt comes at once; the fronts hear of it, or poll meanwhile
		p.failures, p.behind = 0, true
		h.begin(p)
	}
	defer h.each(Reset)
	h.look(err)
}
