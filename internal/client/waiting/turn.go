package waiting

import (
	"container/list"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Kind says why a wait ended.
type Kind uint8

const (
	Timer     Kind = iota // the time was over
	Changed               // somebody wrote or deleted the key, or it expired; the watch on it is over
	Announced             // a message on the channel of Subscribe
	First                 // those before us in the queue on the server have left it
	Reset                 // anything may have happened: a flush, or another connection
	Granted               // a release has handed us the key
)

// Event is why a wait ended.
type Event struct {
	Kind   Kind
	Fence  int64 // Granted: the fencing token, 0 for none
	Ticket int64 // Granted: the place in the queue that it is for
}

// Reply is the event as a machine takes it.
func (e Event) Reply() protocol.Reply {
	switch e.Kind {
	case Granted:
		return protocol.Reply{Kind: protocol.Granted, Int: e.Fence, Int2: e.Ticket}
	case Changed:
		return protocol.Reply{Kind: protocol.Changed}
	default:
		return protocol.Reply{Kind: protocol.Woke}
	}
}

// queue is those of this process who wait for one key. All of it is guarded by the hub's mu.
type queue struct {
	key     string
	turns   list.List // of *Turn
	channel string    // subscribed for it
	place   *place    // where it is listened for; nil until somebody has come so far
}

// Turn is one place in the queue of the process.
type Turn struct {
	hub   *Hub
	queue *queue
	at    *list.Element // of the queue
	ready chan struct{} // closed when this is the front
	left  bool
	token string // for grants

	mu    sync.Mutex
	event Event // the most telling one that was not taken yet
	told  bool
	bell  chan struct{} // capacity 1
	timer *time.Timer
}

// Enter waits until the caller is the front of the key's queue in this process, and the hub listens.
func (h *Hub) Enter(ctx context.Context, key string) (*Turn, error) {
	t := &Turn{hub: h, bell: make(chan struct{}, 1)}
	h.mu.Lock()
	q := h.queues[key]
	if q == nil {
		q = &queue{key: key}
		h.queues[key] = q
	}
	t.queue = q
	t.at = q.turns.PushBack(t)
	h.arrived()
	behind := q.front() != t
	if behind {
		t.ready = make(chan struct{})
	}
	h.mu.Unlock()

	if behind {
		select {
		case <-t.ready:
		case <-ctx.Done():
			t.Leave()
			return nil, context.Cause(ctx)
		}
	}
	entered := false
	defer func() {
		if !entered {
			t.Leave()
		}
	}()
	if err := h.listen(ctx, q); err != nil {
		return nil, err
	}
	entered = true
	return t, nil
}

// Leave gives the place up; the next one becomes the front. Leaving twice is leaving once.
func (t *Turn) Leave() {
	h, q := t.hub, t.queue
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	if t.token != "" && h.tokens[t.token] == t {
		delete(h.tokens, t.token)
	}
	wasFront := q.front() == t
	q.turns.Remove(t.at)
	switch {
	case q.turns.Len() == 0:
		delete(h.queues, q.key)
		if q.channel != "" {
			delete(h.channels, q.channel)
			if q.place != nil && q.place.listener != nil {
				q.place.listener.unsubscribe(q.channel)
			}
		}
		if q.place != nil {
			q.place.queues--
		}
	case wasFront:
		close(q.front().ready)
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	h.departed()
}

// Advance runs a machine over the tracked connection, or over Options.Runner while there is none. Changes of the
// key that the front has not heard of yet are forgotten, because what it asks now comes after them.
func (t *Turn) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	t.Forget()
	if conn := t.conn(); conn != nil {
		return conn.Advance(ctx, m, reply, abandoned)
	}
	return t.hub.opts.Runner.Advance(ctx, m, reply, abandoned)
}

// conn returns the tracked connections, nil while the key is not listened for.
func (t *Turn) conn() *driver.Shared {
	h := t.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.queue.place == nil || t.queue.place.listener == nil || h.tracked == nil {
		return nil
	}
	return h.tracked.conn
}

// Mode returns what wakes those who wait for this key at present.
func (t *Turn) Mode() Mode {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	return t.queue.place.mode()
}

// arm has the key's next change reported, where there is tracking, and tells whether the key exists: if it does
// not, the change has been already. It is for those whose questions do not go over Advance.
func (t *Turn) arm(ctx context.Context) (exists bool, err error) {
	conn := t.conn()
	if conn == nil {
		return true, nil
	}
	reply, err := conn.Request(ctx, wire.Plain("EXISTS", t.queue.key))
	if err != nil && context.Cause(ctx) == nil {
		return true, nil // the connection broke, or the server refuses; the timer remains
	}
	return reply.Int != 0, err
}

// Forget drops a change of the key that Wait has not returned yet.
func (t *Turn) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told && t.event.Kind == Changed {
		t.event, t.told = Event{}, false
		select {
		case <-t.bell:
		default:
		}
	}
}

// Expect makes grants to a token events of this turn, and no others.
func (t *Turn) Expect(token string) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if t.token != "" && t.hub.tokens[t.token] == t {
		delete(t.hub.tokens, t.token)
	}
	t.token = token
	t.hub.tokens[token] = t
}

var errSubscribe = errors.New("no answer to SUBSCRIBE")

// Subscribe makes messages on a channel events of the front of this turn's queue, from now until the
// queue is empty. After the first Subscribe the caller must look at the key again; Reset
// tells of every later time.
func (t *Turn) Subscribe(ctx context.Context, channel string) error {
	h := t.hub
	h.mu.Lock()
	if t.queue.channel == channel {
		h.mu.Unlock()
		return nil
	}
	t.queue.channel = channel
	h.channels[channel] = t.queue
	var subscribed <-chan struct{}
	var l *listener
	if p := t.queue.place; p != nil && p.listener != nil {
		l = p.listener
		subscribed = l.subscribe(channel)
	}
	h.mu.Unlock()
	if subscribed == nil {
		return nil
	}
	unanswered := time.NewTimer(h.opts.ReplyTimeout)
	defer unanswered.Stop()
	select {
	case <-subscribed:
		return nil
	case <-unanswered.C: // a dead connection must not keep anybody from a key that is free: it is replaced, and Reset tells
		h.disconnected(l, errSubscribe)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wait sleeps until there is a reason to ask the server again, for d at most; without tracking, for
// Options.Poll at most. Events that came since the last Wait count.
func (t *Turn) Wait(ctx context.Context, d time.Duration) (Event, error) {
	if t.Mode() != Tracking {
		poll := t.hub.opts.Poll
		d = min(d, poll-rand.N(poll/2+1))
	}
	if t.timer == nil {
		t.timer = time.NewTimer(d)
	} else {
		t.timer.Reset(d)
	}
	select {
	case <-t.bell:
	case <-t.timer.C:
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
	return t.take(), nil
}

// take returns the most telling event and forgets it; Timer when there was none.
func (t *Turn) take() Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.event
	t.event, t.told = Event{}, false
	select {
	case <-t.bell:
	default:
	}
	return e
}

// tell keeps an event and rings. Kinds are in the order of what they tell: a grant is not to be
// forgotten over a change that it caused itself, but a newer grant replaces an older one.
func (t *Turn) tell(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.told || e.Kind >= t.event.Kind {
		t.event, t.told = e, true
	}
	select {
	case t.bell <- struct{}{}:
	default:
	}
}

// front is the one who talks to the server; nil while nobody stands there. The caller holds the hub's mu.
func (q *queue) front() *Turn {
	if first := q.turns.Front(); first != nil {
		return first.Value.(*Turn)
	}
	return nil
}

// tell tells the front, if there is one. The caller holds the hub's mu.
func (q *queue) tell(k Kind) {
	if front := q.front(); front != nil {
		front.tell(Event{Kind: k})
	}
}
