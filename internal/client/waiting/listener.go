package waiting

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// invalidations is the channel that the server publishes invalidations on for RESP2 clients.
const invalidations = "__redis__:invalidate"

// listener is a connection that listens to what its server invalidates and publishes, beside a tracked one. In a
// cluster each server passes on what is published anywhere: a message is then heard once for each place.
type listener struct {
	hub    *Hub
	addr   string
	conn   redis.Conn
	beside redis.Conn // the tracked connection

	mode    Mode  // set before anybody else has it
	refused error // why there is no tracking; likewise

	heard atomic.Int64 // messages so far
	ping  *time.Timer

	mu       sync.Mutex               // guards writing to the connection, and what follows
	awaiting map[string]chan struct{} // subscriptions that are not confirmed yet
	closed   bool
}

// dialListener connects a listener, has the reads of a connection tracked, and subscribes.
func (h *Hub) dialListener(ctx context.Context, addr string, beside redis.Conn, channels []string) (*listener, error) {
	var conn redis.Conn
	var err error
	if h.opts.Servers != nil {
		conn, err = h.opts.Servers.DialAddr(ctx, addr)
	} else {
		conn, err = h.opts.Dial(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("connect the listener: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // cut short, if need be
	l := &listener{hub: h, addr: addr, conn: conn, beside: beside, mode: Messages, awaiting: make(map[string]chan struct{})}
	if err = l.track(); err == nil {
		err = l.listen(channels)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return l, nil
}

// track turns tracking on for the connection beside, where the server has it and allows it. NOLOOP keeps our own
// writes over that, such as the taking of a key, from waking us.
func (l *listener) track() error {
	id, err := redis.Int64(redis.DoWithTimeout(l.conn, l.hub.opts.ReplyTimeout, "CLIENT", "ID"))
	if err != nil {
		l.refused = fmt.Errorf("CLIENT ID: %w", err)
	} else if _, err = redis.DoWithTimeout(l.beside, l.hub.opts.ReplyTimeout,
		"CLIENT", "TRACKING", "ON", "REDIRECT", strconv.FormatInt(id, 10), "NOLOOP"); err != nil {
		l.refused = fmt.Errorf("CLIENT TRACKING: %w", err)
	} else {
		l.mode = Tracking
	}
	if err != nil && !isRefusal(err) {
		return fmt.Errorf("connect the listener: %w", l.refused)
	}
	return nil
}

// listen subscribes and waits for every confirmation.
func (l *listener) listen(channels []string) error {
	args := []any{}
	if l.mode == Tracking {
		args = append(args, invalidations)
	}
	if l.hub.opts.Channel != "" {
		args = append(args, l.hub.opts.Channel)
	}
	for _, c := range channels {
		args = append(args, c)
	}
	if len(args) == 0 {
		return errors.New("nothing to listen to")
	}
	if err := l.conn.Send("SUBSCRIBE", args...); err != nil {
		return err
	}
	if err := l.conn.Flush(); err != nil {
		return err
	}
	for range args {
		if _, err := redis.ReceiveWithTimeout(l.conn, l.hub.opts.ReplyTimeout); err != nil {
			return fmt.Errorf("SUBSCRIBE: %w", err)
		}
	}
	for _, c := range channels {
		if err := l.sharded("SSUBSCRIBE", c); err != nil {
			return err
		}
	}
	return nil
}

// sharded subscribes to what is published for one slot of a cluster alone, as Redisson does there, or ends that.
// Nobody waits for its confirmation: an old server refuses, and so does one that has the slot no more.
func (l *listener) sharded(name, channel string) error {
	if l.hub.opts.Servers == nil {
		return nil
	}
	if err := l.conn.Send(name, channel); err != nil {
		return err
	}
	return l.conn.Flush()
}

// begin starts the reader and the pings. The hub has the listener by then.
func (l *listener) begin() {
	l.hub.background.Go(l.read)
	l.lookAgain(ping, func() { l.look(0) })
}

// close ends the connection. The reader ends with it.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.ping != nil {
		l.ping.Stop()
	}
	l.confirmAll()
	_ = l.conn.Close()
}

// confirmAll ends the waiting for confirmations. Called with mu held.
func (l *listener) confirmAll() {
	for _, confirmed := range l.awaiting {
		close(confirmed)
	}
	clear(l.awaiting)
}

func (l *listener) read() {
	for {
		raw, err := redis.ReceiveWithTimeout(l.conn, 0) // the pings bound the wait
		if isRefusal(err) {                             // of a channel: there is nothing to wait for
			l.mu.Lock()
			l.confirmAll()
			l.mu.Unlock()
			continue
		}
		if topology.IsBusy(err) && !l.awaits() { // the answer to a ping
			l.heard.Add(1)
			continue
		}
		if err != nil {
			l.hub.disconnected(l, fmt.Errorf("listener: %w", err))
			return
		}
		l.heard.Add(1)
		if parts, ok := raw.([]any); ok && len(parts) == 3 {
			kind, _ := redis.String(parts[0], nil)
			channel, _ := redis.String(parts[1], nil)
			l.dispatch(kind, channel, parts[2])
		} // else a pong
		runtime.Gosched() // the waiter that the message was for runs first; there is hardly anything to be read yet
	}
}

// awaits tells that a subscription is not confirmed yet.
func (l *listener) awaits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.awaiting) > 0
}

func (l *listener) dispatch(kind, channel string, payload any) {
	switch {
	case kind == "subscribe":
		l.mu.Lock()
		if confirmed := l.awaiting[channel]; confirmed != nil {
			close(confirmed)
			delete(l.awaiting, channel)
		}
		l.mu.Unlock()
	case kind != "message" && kind != "smessage":
	case channel == invalidations:
		keys, _ := payload.([]any)
		if keys == nil { // FLUSHALL or FLUSHDB
			l.hub.flushed()
		}
		for _, key := range keys {
			if name, err := redis.String(key, nil); err == nil {
				l.hub.changed(name)
			}
		}
	case channel == l.hub.opts.Channel:
		text, _ := redis.String(payload, nil)
		switch token, said, ok := protocol.ReadMessage(text); {
		case !ok:
		case said.Kind == protocol.Granted:
			l.hub.granted(token, Event{Kind: Granted, Ticket: said.Int2, Fence: said.Int})
		default:
			l.hub.granted(token, Event{Kind: First})
		}
	default:
		l.hub.announced(channel)
	}
}

// look pings the server when nothing has been heard since the last look, and gives the listener up when
// that stays without an answer. The connection beside it is pinged by itself.
func (l *listener) look(heard int64) {
	if now := l.heard.Load(); now != heard {
		l.lookAgain(ping, func() { l.look(now) })
		return
	}
	l.write("PING")
	l.lookAgain(l.hub.opts.ReplyTimeout, func() {
		now := l.heard.Load()
		if now == heard {
			l.hub.disconnected(l, fmt.Errorf("listener: no answer to a ping within %v", l.hub.opts.ReplyTimeout))
			return
		}
		l.lookAgain(ping, func() { l.look(now) })
	})
}

func (l *listener) lookAgain(after time.Duration, look func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.ping = time.AfterFunc(after, look)
	}
}

// subscribe asks for one more channel; what it returns is closed when the server has confirmed, or
// when there is nothing to wait for any more.
func (l *listener) subscribe(channel string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	confirmed := l.awaiting[channel]
	if confirmed == nil {
		confirmed = make(chan struct{})
		if l.closed {
			close(confirmed)
			return confirmed
		}
		l.awaiting[channel] = confirmed
	}
	l.send("SUBSCRIBE", channel)
	if !l.closed {
		_ = l.sharded("SSUBSCRIBE", channel)
	}
	return confirmed
}

func (l *listener) unsubscribe(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send("UNSUBSCRIBE", channel)
	if !l.closed {
		_ = l.sharded("SUNSUBSCRIBE", channel)
	}
}

func (l *listener) write(name string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.send(name, args...)
}

// send is called with mu held. An error shows at the reader too, which gives the listener up.
func (l *listener) send(name string, args ...any) {
	if l.closed {
		return
	}
	if err := l.conn.Send(name, args...); err == nil {
		_ = l.conn.Flush()
	}
}

// isRefusal tells that the server does not allow a command. One that is busy with a script may allow it later.
func isRefusal(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused) && !topology.Busy(string(refused))
}
