package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Mode is what wakes the waiters at present.
type Mode string

// lockmigrate.Event.Mode says what they mean.
const (
	Idle     Mode = "idle"
	Polling  Mode = "polling"
	Messages Mode = "messages"
	Tracking Mode = "tracking"
)

// Runner runs protocol machines: a driver.PerAttempt over a pool, or a driver.Shared.
type Runner interface {
	Advance(ctx context.Context, m protocol.Machine, reply protocol.Reply, abandoned func(driver.Outcome)) (driver.Outcome, error)
}

// Options of a Hub. All are required but Opened, Channel and GiveBack, and one of Dial and Servers.
type Options struct {
	// Dial makes a connection outside of any pool.
	Dial func(ctx context.Context) (redis.Conn, error)
	// Servers, where the keys are on several, takes Dial's place.
	Servers topology.Servers
	// Runner runs the fronts' machines while there is no tracked connection.
	Runner Runner
	// Opened, if set, is handed each tracked connection before a command goes over it.
	Opened func(conn redis.Conn)
	// Now is the clock of the machines.
	Now func() protocol.Instant
	// Channel is where grants to this process are published; unique to it. Empty: none.
	Channel string

	ReplyTimeout time.Duration
	Poll         time.Duration // the longest sleep of a front without tracking, less up to half at random

	// GiveBack gives a key back that was granted to a token of Over. It must not block. Nil: nobody does.
	GiveBack func(key, token string)

	// Changed is told of a new mode, and why, from any goroutine. It must not block.
	Changed func(mode Mode, why error)
}

const (
	ping   = time.Minute            // how long a listener may hear nothing before it is pinged
	linger = 10 * time.Second       // how long the connections outlive the last waiter
	retry  = 100 * time.Millisecond // the pause after a failed attempt to connect; it doubles up to 64 times that
)

// Hub is everything in one process that waits on one server, or on the servers of a cluster. It is safe for
// concurrent use.
type Hub struct {
	opts Options
	life context.Context // of attempts to connect
	end  context.CancelFunc

	mu       sync.Mutex
	queues   map[string]*queue // by key; only those that somebody stands in
	tokens   map[string]*Turn  // fronts that may be granted a key
	over     former            // tokens of ours that want nothing any more
	channels map[string]*queue // by the channel that announces releases of the queue's key
	places   map[string]*place // by the server's address
	tracked  *tracked          // nil while nothing is connected, nor is to be
	waiters  int
	mode     Mode
	why      error // it is no better, as far as it was told
	linger   *time.Timer
	closed   bool

	background sync.WaitGroup
}

// New returns a hub that connects when somebody waits.
func New(opts Options) *Hub {
	h := &Hub{
		opts: opts, mode: Idle,
		queues: make(map[string]*queue), tokens: make(map[string]*Turn), channels: make(map[string]*queue),
		places: make(map[string]*place),
	}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// Waiting returns how many goroutines of this process stand in the key's queue.
func (h *Hub) Waiting(key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[key]; q != nil {
		return q.turns.Len()
	}
	return 0
}

// Close ends the listening and returns when nothing of the hub runs any more. Nobody may wait by then.
func (h *Hub) Close() {
	h.end()
	defer h.background.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.stop()
}

// stop gives all connections up. The caller holds mu.
func (h *Hub) stop() {
	if h.linger != nil {
		h.linger.Stop()
	}
	for _, p := range h.places {
		h.forget(p)
	}
	if t := h.tracked; t != nil {
		h.tracked = nil
		h.background.Go(func() { t.conn.Close(); t.conn.Wait() })
	}
	h.setMode(Idle, nil)
}

// setMode is called with mu held. Why a mode is no better may be known only later.
func (h *Hub) setMode(m Mode, why error) {
	if h.mode != m || h.why == nil && why != nil {
		h.mode, h.why = m, why
		h.opts.Changed(m, why) // it may panic: who holds mu defers
	}
}

// each tells every front. The caller holds mu.
func (h *Hub) each(k Kind) {
	for _, q := range h.queues {
		q.tell(k)
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
		h.linger = time.AfterFunc(linger, h.lingered)
	} else {
		h.linger.Reset(linger)
	}
}

func (h *Hub) lingered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters == 0 && !h.closed {
		h.stop()
	}
}

// changed is told by a listener that a key was written, deleted or has expired.
func (h *Hub) changed(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[key]; q != nil {
		q.tell(Changed)
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
	switch t, key := h.tokens[token], h.over.keys[token]; {
	case t != nil:
		t.tell(e)
	case key != "": // a bridge client that is told to look may have the key too
		h.opts.GiveBack(key, token)
	} // else it has left; its leaving passes the key on
}

// Over notes that nothing of ours is on the server any more under a token that stood in the key's queue. A queue that goes back in time,
// as in a replica that lags and is promoted, has its entry once more: the key is then given back at once.
func (h *Hub) Over(key, token string) {
	if h.opts.GiveBack == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over.add(key, token)
}

// former are the newest tokens that are over, with their keys.
type former struct {
	keys   map[string]string
	tokens [512]string
	next   int
}

func (f *former) add(key, token string) {
	if f.keys == nil {
		f.keys = make(map[string]string)
	}
	place := &f.tokens[f.next%len(f.tokens)]
	delete(f.keys, *place)
	*place, f.keys[token] = token, key
	f.next++
}

// announced is told of a message on a channel that Subscribe asked for.
func (h *Hub) announced(channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.channels[channel]; q != nil {
		q.tell(Announced)
	}
}
