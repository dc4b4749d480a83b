package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/topology"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Mode is what wakes the waiters at present.
type Mode uint8

const (
	Idle     Mode = iota // nobody waits, nothing is connected
	Polling              // timers alone: the server, or the way to it, offers nothing else
	Messages             // pub/sub: releases of this library's locks; a timer for those of others
	Tracking             // pub/sub, and client tracking for releases by anybody
)

// String returns the mode's name.
func (m Mode) String() string {
	return [...]string{"idle", "polling", "messages", "tracking"}[m]
}

// Runner runs protocol machines: a driver.Driver over a pool, or a line.
type Runner interface {
	Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error)
}

// Options of a Hub. Runner and Now are required.
type Options struct {
	// Dial makes a connection outside of any pool. Nil: polling only.
	Dial func(ctx context.Context) (redis.Conn, error)
	// Servers, where the keys are on several, takes Dial's place.
	Servers topology.Servers
	// Runner runs the fronts' machines while there is no line.
	Runner Runner
	// Now is the clock of the machines.
	Now func() protocol.Instant
	// Channel is where grants to this process are published; unique to it. Empty: none.
	Channel string
	// NoTracking keeps the hub from asking for client tracking.
	NoTracking bool

	ReplyTimeout time.Duration // zero: 5 s
	Poll         time.Duration // the longest sleep of a front without tracking, less up to half at random; zero: 100 ms
	Ping         time.Duration // how long the listener may hear nothing before it is pinged; zero: 1 min
	Linger       time.Duration // how long the connections outlive the last waiter; zero: 10 s
	Retry        time.Duration // the shortest time between two attempts to connect; it doubles up to 64 times that; zero: 100 ms

	// Changed is told of a new mode, and why, from any goroutine. It must not block.
	Changed func(mode Mode, why error)
}

func (o Options) dials() bool { return o.Dial != nil || o.Servers != nil }

func (o Options) withDefaults() Options {
	or := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	or(&o.ReplyTimeout, 5*time.Second)
	or(&o.Poll, 100*time.Millisecond)
	or(&o.Ping, time.Minute)
	or(&o.Linger, 10*time.Second)
	or(&o.Retry, 100*time.Millisecond)
	if o.Changed == nil {
		o.Changed = func(Mode, error) {}
	}
	return o
}

// Hub is everything in one process that waits on one server. It is safe for concurrent use.
type Hub struct {
	opts Options

	mu       sync.Mutex
	queues   map[string]*queue // by key; only those that somebody stands in
	tokens   map[string]*Turn  // fronts that may be granted a key
	channels map[string]*queue // by the channel that announces releases of the queue's key
	waiters  int

	mode     Mode
	session  *session
	starting chan struct{} // closed when the attempt that is under way is over
	failures int           // attempts in a row that came to nothing
	behind   bool          // fronts are waiting that asked the server without being listened for
	again    *time.Timer   // the next attempt
	linger   *time.Timer
	closed   bool

	background sync.WaitGroup
}

// New returns a hub that connects when somebody waits.
func New(opts Options) *Hub {
	return &Hub{
		opts:   opts.withDefaults(),
		queues: make(map[string]*queue), tokens: make(map[string]*Turn), channels: make(map[string]*queue),
	}
}

// Mode returns what wakes the waiters at present.
func (h *Hub) Mode() Mode {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mode
}

// Waiting returns how many goroutines of this process stand in the key's queue.
func (h *Hub) Waiting(key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[key]; q != nil {
		return q.length
	}
	return 0
}

// Advance runs a machine over the hub's own line, or over Options.Runner while there is none.
func (h *Hub) Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error) {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	if s != nil {
		return s.line.Advance(ctx, m, reply, abandoned)
	}
	return h.opts.Runner.Advance(ctx, m, reply, abandoned)
}

// Arm has the key's next change reported to the front of its queue, where there is tracking, and tells
// whether the key exists: if it does not, the change has been already. It is for those whose attempts
// do not read the key over Advance.
func (h *Hub) Arm(ctx context.Context, key string) (exists bool, err error) {
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	if s == nil {
		return true, nil
	}
	reply, err := s.line.Request(ctx, wire.Plain("EXISTS", key))
	if err != nil && context.Cause(ctx) == nil {
		return true, nil // the session is over, or the server refuses; the timer remains
	}
	return reply.Int != 0, err
}

// Close ends the listening and returns when nothing of the hub runs any more. Nobody may wait by then.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	s := h.stop()
	h.mu.Unlock()
	if s != nil {
		s.close()
	}
	h.background.Wait()
}

// stop takes the session out of the hub. The caller holds mu and closes it.
func (h *Hub) stop() *session {
	for _, t := range []*time.Timer{h.again, h.linger} {
		if t != nil {
			t.Stop()
		}
	}
	s := h.session
	h.session = nil
	h.setMode(Idle, nil)
	return s
}

// setMode is called with mu held.
func (h *Hub) setMode(m Mode, why error) {
	if h.mode != m {
		h.mode = m
		h.opts.Changed(m, why)
	}
}

// listen makes sure that the hub listens, or has tried to as far as this caller's patience goes. What
// it cannot have now it gets later: a Reset tells.
func (h *Hub) listen(ctx context.Context) error {
	h.mu.Lock()
	if h.session != nil || !h.opts.dials() || h.closed || h.failures > 0 && h.starting == nil {
		if h.session == nil && h.mode == Idle && !h.closed {
			h.setMode(Polling, nil)
		}
		h.mu.Unlock()
		return nil
	}
	if h.starting == nil {
		h.begin()
	}
	starting := h.starting
	h.mu.Unlock()
	select {
	case <-starting:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin starts an attempt to connect. The caller holds mu, and there is neither a session nor an attempt.
func (h *Hub) begin() {
	h.starting = make(chan struct{})
	channels := make([]string, 0, len(h.channels))
	for channel := range h.channels {
		channels = append(channels, channel)
	}
	h.background.Go(func() { h.start(channels) })
}

func (h *Hub) start(channels []string) {
	s, err := newSession(h, channels)
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.starting)
	h.starting = nil
	if err == nil && (h.closed || h.waiters == 0) {
		h.background.Go(s.close)
		return
	}
	if err != nil {
		h.failures++
		h.behind = true
		h.setMode(Polling, err)
		h.later()
		return
	}
	behind := h.behind
	h.failures, h.behind = 0, false
	h.session = s
	h.setMode(s.offers())
	s.begin()
	for channel := range h.channels { // what was asked for while we connected
		s.subscribe(channel)
	}
	if behind {
		h.each(Reset)
	}
}

// later schedules the next attempt. The caller holds mu.
func (h *Hub) later() {
	if h.closed || h.waiters == 0 {
		return
	}
	if h.again == nil {
		h.again = time.AfterFunc(h.delay(), h.retry)
	} else {
		h.again.Reset(h.delay())
	}
}

func (h *Hub) delay() time.Duration {
	return h.opts.Retry << min(max(h.failures-1, 0), 6)
}

func (h *Hub) retry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != nil || h.starting != nil || h.closed {
		return
	}
	if h.waiters == 0 {
		h.failures = 0 // the next one to wait tries at once
		h.setMode(Idle, nil)
		return
	}
	h.begin()
}

// lost is told by a session that one of its connections broke.
func (h *Hub) lost(s *session, err error) {
	h.mu.Lock()
	if h.session != s {
		h.mu.Unlock()
		return
	}
	h.session = nil
	h.behind = true
	h.setMode(Polling, err)
	if h.waiters > 0 && h.starting == nil && !h.closed {
		h.begin() // the first attempt comes at once; fronts hear of it, or poll meanwhile
	}
	h.each(Reset)
	h.background.Go(s.close) // not from here: this may be the line's own goroutine
	h.mu.Unlock()
}

// each tells every front. The caller holds mu.
func (h *Hub) each(k Kind) {
	for _, q := range h.queues {
		if q.front != nil {
			q.front.tell(Event{Kind: k})
		}
	}
}

// arrived and departed count the waiters; the caller holds mu.
func (h *Hub) arrived() {
	h.waiters++
	if h.linger != nil {
		h.linger.Stop()
	}
}

func (h *Hub) departed() {
	h.waiters--
	if h.waiters > 0 || h.closed {
		return
	}
	if h.linger == nil {
		h.linger = time.AfterFunc(h.opts.Linger, h.lingered)
	} else {
		h.linger.Reset(h.opts.Linger)
	}
}

func (h *Hub) lingered() {
	h.mu.Lock()
	if h.waiters > 0 || h.closed {
		h.mu.Unlock()
		return
	}
	if s := h.stop(); s != nil {
		h.background.Go(s.close)
	}
	h.failures = 0
	h.mu.Unlock()
}

// changed is told by the listener that a key was written, deleted or has expired.
func (h *Hub) changed(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[key]; q != nil && q.front != nil {
		q.front.tell(Event{Kind: Changed})
	}
}

// flushed is told that every key may have gone.
func (h *Hub) flushed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each(Reset)
}

// granted is told what was published on the process's channel: a token, and what it got.
func (h *Hub) granted(token string, e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.tokens[token]; t != nil {
		t.tell(e)
	} // else it has left; its leaving passes the key on
}

// announced is told of a message on a channel that Subscribe asked for.
func (h *Hub) announced(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.channels[channel]; q != nil && q.front != nil {
		q.front.tell(Event{Kind: Announced})
	}
}
