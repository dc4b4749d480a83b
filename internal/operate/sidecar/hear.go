package sidecar

import (
	"context"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// pingEvery is the pause between two pings on the connection that only listens.
const pingEvery = 5 * time.Second

// hear listens to what the scripts tell this sidecar. Nothing depends on it but counts, and how soon an attempt is answered.
func (s *Sidecar) hear(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.hearOnce(ctx)
		s.hears.Store(false)
		_ = lifetime.Sleep(ctx, time.Second)
	}
}

func (s *Sidecar) hearOnce(ctx context.Context) error {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	listener := redis.PubSubConn{Conn: conn}
	if err := listener.Subscribe(protocol.SidecarChannel(s.owner())); err != nil {
		return err
	}
	s.announce(ctx)
	over, sending := make(chan struct{}), make(chan struct{})
	defer func() { close(over); <-sending }()
	go func() { // a connection has one sender
		defer close(sending)
		ping := time.NewTicker(pingEvery)
		defer ping.Stop()
		for {
			select {
			case <-over:
				return
			case <-ctx.Done():
				_ = listener.Unsubscribe()
				return
			case <-ping.C:
				if listener.Ping("") != nil {
					return
				}
				s.announce(ctx)
			}
		}
	}()
	for {
		switch m := listener.ReceiveWithTimeout(2 * pingEvery).(type) {
		case redis.Subscription:
			if s.hears.Store(m.Count > 0); m.Count == 0 {
				return ctx.Err()
			}
		case redis.Message:
			s.told(string(m.Data))
		case redis.Pong:
		case error:
			return m
		}
	}
}

// announce tells other processes of this name that this one lives, or that it takes no new clients any more. There should be no other,
// except while one is replaced.
func (s *Sidecar) announce(ctx context.Context) {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	what := here
	if s.leaving.Load() {
		what = leaves
	}
	_, _ = redis.DoWithTimeout(conn, s.opts.ReplyTimeout, "PUBLISH", protocol.SidecarChannel(s.owner()), what+" "+s.member.ID)
}

// What a process says of itself.
const (
	here   = "here"
	leaves = "leaves"
)

// twinsAfter is how long two processes of a name may both take new clients. Whoever replaces one ends the first of them when the second
// has begun, which takes a moment.
const twinsAfter = 30 * time.Second

// twins are the processes of this name that were heard. It is for one goroutine.
type twins map[string]struct{ first, last time.Time }

// heard is told that another process lives and takes new clients. It tells whether that is so for too long.
func (t twins) heard(id string, now time.Time) bool {
	seen := t[id]
	if now.Sub(seen.last) > 2*pingEvery {
		seen.first = now
	}
	seen.last = now
	t[id] = seen
	return now.Sub(seen.first) > twinsAfter
}

// heardOf is told what a process of this name says. The list of keys is read again: that process may have changed it.
func (s *Sidecar) heardOf(what, id string) {
	if id == s.member.ID {
		return
	}
	s.readAgain()
	if what == leaves {
		delete(s.twins, id)
		s.clients.followed()
		return
	}
	if s.twins.heard(id, time.Now()) && !s.leaving.Load() && s.counts.twins.Add(1)%12 == 1 { // once a minute
		s.opts.Log.Error("another process has this sidecar's --name: give each its own, or a lock of one service is released by the other", "other", id)
	}
}

// told reads a message: "<what> <key>" of a sidecar's script, "here <id>" of a process, or that a lock was handed over.
func (s *Sidecar) told(message string) {
	what, key, _ := strings.Cut(message, " ")
	switch what {
	case "late":
		s.counts.late.Add(1)
		s.opts.Log.Error("the lease of this member is over: refused", "key", key)
	case "displaced":
		s.counts.displaced.Add(1)
		s.opts.Log.Error("displaced: at its DEL another value stood on the key", "key", key)
	case here, leaves:
		s.heardOf(what, key)
	case "gone":
		s.counts.overran.Add(1)
		s.opts.Log.Warn("a DEL after the end of its lease", "key", key)
	default:
		s.waking.Lock()
		s.handed = time.Now()
		close(s.woken)
		s.woken = make(chan struct{})
		s.waking.Unlock()
	}
}
