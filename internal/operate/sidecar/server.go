package sidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// Listener is where clients of one dialect connect.
type Listener struct {
	Address string      // host:port, or unix:PATH
	Dialect string      // its name; empty: the namespace's own
	TLS     *tls.Config // nil for none
}

// Server is a sidecar and the connections of its service.
type Server struct {
	*proxy.Server
	member   *Sidecar
	upstream *proxy.Upstream
}

// Server returns a Server that has not begun. What is no lock's goes to the upstream. Leaving, if set, is called when no client is let in any more.
func (s *Sidecar) Server(upstream *proxy.Upstream, drain time.Duration, leaving func(), listeners ...Listener) (*Server, error) {
	opts := proxy.Options{
		Dial: upstream.Dial, Follow: upstream.Follower(), Drain: drain, Log: s.opts.Log, Beside: s.Beside, Waits: s.opts.Old != nil,
		Leaving: func() {
			if leaving != nil {
				leaving()
			}
			s.Leaving()
		},
	}
	for _, l := range listeners {
		r, err := s.Rewriter(l.Dialect)
		if err != nil {
			return nil, err
		}
		opts.Listeners = append(opts.Listeners, proxy.Listener{Address: l.Address, TLS: l.TLS, Rewriter: upstream.Alone(r)})
	}
	return &Server{proxy.New(opts), s, upstream}, nil
}

// Run joins the namespace, and serves until ctx ends and the clients have left. The locks are looked after until then.
func (s *Server) Run(ctx context.Context) error {
	working, leave := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer leave()
	background.Go(func() { _ = s.member.Run(working) })
	if err := s.member.Joined(ctx); err != nil {
		return err
	}
	background.Go(func() {
		s.upstream.Watch(working, time.Second, func(to string) { s.CutAll("the master is " + to + " now") })
	})
	return s.Server.Run(ctx)
}

// Ready returns nil while clients can connect and lock.
func (s *Server) Ready() error {
	if _, _, joined := s.member.Stage(); !joined {
		return errors.New("this member's lease is over: every lock is refused")
	}
	return s.Server.Ready()
}
