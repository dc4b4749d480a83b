package waiting

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/line"
)

// invalidations is the channel that the server publishes invalidations on for RESP2 clients.
const invalidations = "__redis__:invalidate"

// session is one life of the pair of connections: the line, whose reads are tracked, and the listener.
// When one of them breaks, the session is over.
//
// Where the keys are on several servers, the line has a connection to each, and each of these has a
// listener of its own (an ear) beside it, because invalidations go only to connections of their own
// server. The session's listener is then the one for messages, which any server passes on. An ear lives
// and dies with its connection of the line; the session goes on, and the fronts get a Reset.
type session struct {
	hub      *Hub
	line     line.Way
	listener redis.Conn
	home     string // the listener's server; empty where there is only one

	heard atomic.Int64 // messages so far
	ping  *time.Timer

	mu       sync.Mutex               // guards writing to the listener, and what follows
	awaiting map[string]chan struct{} // subscriptions that are not confirmed yet
	ears     map[string]*ear          // by server, besides home
	closed   bool
	mode     Mode
	refused  error // why there is no tracking
}

// newSession connects both, or neither.
func newSession(h *Hub, channels []string) (*session, error) {
	ctx, cancel := context.WithTimeout(context.Background(), h.opts.ReplyTimeout)
	defer cancel()
	home, listener, err := h.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect the listener: %w", err)
	}
	s := &session{
		hub: h, listener: listener, home: home, mode: Messages,
		awaiting: make(map[string]chan struct{}), ears: make(map[string]*ear),
	}
	id, err := s.identify(listener)
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	opts := line.Options{Dial: h.opts.Dial, Now: h.opts.Now, ReplyTimeout: h.opts.ReplyTimeout, Ping: h.opts.Ping}
	var connect func(ctx context.Context) error
	if h.opts.Servers != nil {
		lines := line.NewLines(h.opts.Servers, opts, &ears{session: s, id: id})
		s.line, connect = lines, func(ctx context.Context) error { return lines.ConnectTo(ctx, home) }
	} else {
		opts.Setup = func(conn redis.Conn) error { return s.track(conn, id) }
		opts.Down = func(err error) { h.lost(s, err) }
		s.line = line.New(opts)
		connect = s.line.Connect
	}
	if err = connect(ctx); err != nil {
		err = fmt.Errorf("connect the line: %w", err)
	} else {
		err = s.listen(channels)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial connects the listener, to any of several servers.
func (h *Hub) dial(ctx context.Context) (addr string, conn redis.Conn, err error) {
	if h.opts.Servers == nil {
		conn, err = h.opts.Dial(ctx)
		return "", conn, err
	}
	if addr, err = h.opts.Servers.Locate(ctx, ""); err == nil {
		conn, err = h.opts.Servers.DialAddr(ctx, addr)
	}
	if err != nil {
		h.opts.Servers.Stale(addr)
	}
	return addr, conn, err
}

// offers returns the mode, and why it is not Tracking where it was wanted.
func (s *session) offers() (Mode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode, s.refused
}

// identify asks for the listener's client id, 0 when the server does not tell or is not to be asked.
func (s *session) identify(listener redis.Conn) (int64, error) {
	if s.hub.opts.NoTracking {
		return 0, nil
	}
	id, err := redis.Int64(redis.DoWithTimeout(listener, s.hub.opts.ReplyTimeout, "CLIENT", "ID"))
	if err == nil {
		return id, nil
	}
	if !isRefusal(err) {
		return 0, fmt.Errorf("connect the listener: CLIENT ID: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = fmt.Errorf("CLIENT ID: %w", err)
	return 0, nil
}

// track turns tracking on for the line, where the server has it and allows it. NOLOOP keeps our own
// writes over the line, such as the taking of a key, from waking us.
func (s *session) track(conn redis.Conn, listener int64) error {
	if listener == 0 {
		return nil
	}
	_, err := redis.DoWithTimeout(conn, s.hub.opts.ReplyTimeout,
		"CLIENT", "TRACKING", "ON", "REDIRECT", strconv.FormatInt(listener, 10), "NOLOOP")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.mode = Tracking
	case isRefusal(err):
		s.refused = fmt.Errorf("CLIENT TRACKING: %w", err)
	default:
		return err
	}
	return nil
}

// listen subscribes and waits for every confirmation.
func (s *session) listen(channels []string) error {
	args := []any{}
	if mode, _ := s.offers(); mode == Tracking {
		args = append(args, invalidations)
	}
	if s.hub.opts.Channel != "" {
		args = append(args, s.hub.opts.Channel)
	}
	for _, c := range channels {
		args = append(args, c)
	}
	if len(args) == 0 {
		return errors.New("nothing to listen to")
	}
	if err := s.listener.Send("SUBSCRIBE", args...); err != nil {
		return err
	}
	if err := s.listener.Flush(); err != nil {
		return err
	}
	for range args {
		if _, err := redis.ReceiveWithTimeout(s.listener, s.hub.opts.ReplyTimeout); err != nil {
			return fmt.Errorf("SUBSCRIBE: %w", err)
		}
	}
	return nil
}

// begin starts the reader and the pings. The hub has the session by then.
func (s *session) begin() {
	s.hub.background.Go(s.read)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ping = time.AfterFunc(s.hub.opts.Ping, func() { s.look(0) })
}

// close ends both connections. The reader and the line's own goroutines end with them.
func (s *session) close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	if s.ping != nil {
		s.ping.Stop()
	}
	for _, confirmed := range s.awaiting {
		close(confirmed)
	}
	clear(s.awaiting)
	ears := s.ears
	s.ears = make(map[string]*ear)
	s.mu.Unlock()
	if !closed {
		for _, e := range ears {
			e.close()
		}
		_ = s.listener.Close()
		s.line.Close()
		s.line.Wait()
	}
}

func (s *session) read() {
	for {
		raw, err := redis.ReceiveWithTimeout(s.listener, 0) // the pings bound the wait
		if err != nil {
			s.hub.lost(s, fmt.Errorf("listener: %w", err))
			return
		}
		s.heard.Add(1)
		if parts, ok := raw.([]any); ok && len(parts) == 3 {
			kind, _ := redis.String(parts[0], nil)
			channel, _ := redis.String(parts[1], nil)
			s.dispatch(kind, channel, parts[2])
		} // else a pong
		runtime.Gosched() // whom the message was for comes first; there is hardly anything to be read yet
	}
}

func (s *session) dispatch(kind, channel string, payload any) {
	switch {
	case kind == "subscribe":
		s.mu.Lock()
		if confirmed := s.awaiting[channel]; confirmed != nil {
			close(confirmed)
			delete(s.awaiting, channel)
		}
		s.mu.Unlock()
	case kind != "message":
	case channel == invalidations:
		keys, _ := payload.([]any)
		if keys == nil { // FLUSHALL or FLUSHDB
			s.hub.flushed()
		}
		for _, key := range keys {
			if name, err := redis.String(key, nil); err == nil {
				s.hub.changed(name)
			}
		}
	case channel == s.hub.opts.Channel:
		text, _ := redis.String(payload, nil)
		if token, e, ok := parseGrant(text); ok {
			s.hub.granted(token, e)
		}
	default:
		s.hub.announced(channel)
	}
}

// parseGrant reads "<token> <ticket> <fence>", the script's message to the one who gets the key, and
// "<token> head", to the one who stands first now.
func parseGrant(text string) (token string, e Event, ok bool) {
	token, rest, ok := strings.Cut(text, " ")
	if !ok {
		return "", Event{}, false
	}
	if rest == "head" {
		return token, Event{Kind: First}, true
	}
	ticket, fence, ok := strings.Cut(rest, " ")
	if !ok {
		return "", Event{}, false
	}
	e.Kind = Granted
	var err1, err2 error
	e.Ticket, err1 = strconv.ParseInt(ticket, 10, 64)
	e.Fence, err2 = strconv.ParseInt(fence, 10, 64)
	return token, e, err1 == nil && err2 == nil
}

// look pings the listener when it has heard nothing since the last look, and gives the session up when
// that stays without an answer. The line pings itself.
func (s *session) look(heard int64) {
	if now := s.heard.Load(); now != heard {
		s.lookAgain(s.hub.opts.Ping, func() { s.look(now) })
		return
	}
	s.write("PING")
	s.lookAgain(s.hub.opts.ReplyTimeout, func() {
		now := s.heard.Load()
		if now == heard {
			s.hub.lost(s, fmt.Errorf("listener: no answer to a ping within %v", s.hub.opts.ReplyTimeout))
			return
		}
		s.lookAgain(s.hub.opts.Ping, func() { s.look(now) })
	})
}

func (s *session) lookAgain(after time.Duration, look func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.ping = time.AfterFunc(after, look)
	}
}

// subscribe asks for one more channel; what it returns is closed when the server has confirmed, or
// when there is nothing to wait for any more.
func (s *session) subscribe(channel string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	confirmed := s.awaiting[channel]
	if confirmed == nil {
		confirmed = make(chan struct{})
		if s.closed {
			close(confirmed)
			return confirmed
		}
		s.awaiting[channel] = confirmed
	}
	s.send("SUBSCRIBE", channel)
	return confirmed
}

func (s *session) unsubscribe(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send("UNSUBSCRIBE", channel)
}

func (s *session) write(name string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(name, args...)
}

// send is called with mu held. An error shows at the reader too, which ends the session.
func (s *session) send(name string, args ...any) {
	if s.closed {
		return
	}
	if err := s.listener.Send(name, args...); err == nil {
		_ = s.listener.Flush()
	}
}

func isRefusal(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused)
}
