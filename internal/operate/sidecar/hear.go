package sidecar

import (
	"context"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// pingEvery is the pause between two pings on the connection that only listens.
const pingEvery = 5 * time.Second

// hear listens to what the scripts tell this sidecar. Nothing depends on it but counts, and how soon an attempt is answered.
func (s *Sidecar) hear(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.hearOnce(ctx)
		s.hears.Store(false)
		s.functions.Store(false) // the server may be another one by now
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (s *Sidecar) hearOnce(ctx context.Context) error {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	listener := redis.PubSubConn{Conn: conn}
	if err := listener.Subscribe(protocol.SidecarChannel(s.opts.Name)); err != nil {
		return err
	}
	s.announce(ctx)
	loaded, final := s.loadFunctions(ctx)
	s.functions.Store(loaded)
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
			case <-s.flushed:
				loaded, final = s.loadFunctions(ctx)
				s.functions.Store(loaded)
			case <-ping.C:
				if !final { // a FUNCTION FLUSH may have removed them
					loaded, final = s.loadFunctions(ctx)
					s.functions.Store(loaded)
				}
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

// announce tells other processes of this name that this one lives. There should be none: they would look after each other's locks, and
// a DEL of one service would release a lock of the other.
func (s *Sidecar) announce(ctx context.Context) {
	conn, err := s.opts.Pool.GetContext(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = redis.DoWithTimeout(conn, s.opts.ReplyTimeout, "PUBLISH", protocol.SidecarChannel(s.opts.Name), "here "+s.member.ID)
}

// heardOf is told that a process of this name lives. While listeners are handed over there are two.
func (s *Sidecar) heardOf(id string) {
	s.keys.mu.Lock()
	left := s.keys.left
	s.keys.mu.Unlock()
	if id == s.member.ID || left || s.clients.oldest() == before {
		return
	}
	if s.counts.twins.Add(1)%12 == 1 { // once a minute
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
	case "ambiguous":
		s.counts.ambiguous.Add(1)
		s.opts.Log.Warn("a DEL while two grants are out: the lock is kept for the other one", "key", key)
	case "displaced":
		s.counts.displaced.Add(1)
		s.opts.Log.Error("displaced: at its DEL another value stood on the key", "key", key)
	case "here":
		s.heardOf(key)
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
