package fleet

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// Sidecar is one that listens.
type Sidecar struct {
	Addr string
	pool *redis.Pool
	stop func()
}

// StartSidecar starts the sidecar of a service, and returns when it has joined its namespace and listens. The key is one of the service's.
func StartSidecar(ctx context.Context, pool lockmigrate.Pool, end *endpoint.Endpoint, o sidecar.Options, key string) (*Sidecar, error) {
	o.Pool = pool
	member, err := sidecar.New(ctx, o)
	if err != nil {
		return nil, err
	}
	dialect, err := member.ParseDialect("")
	if err != nil {
		return nil, err
	}
	upstream, err := proxy.NewUpstream(ctx, end, []string{key})
	if err != nil {
		return nil, err
	}
	rewriter := member.Rewriter(dialect)
	if end.Kind == endpoint.Cluster {
		rewriter = proxy.Alone(rewriter)
	}
	server := proxy.New(proxy.Options{
		Listeners: []proxy.Listener{{Address: "127.0.0.1:0", Rewriter: rewriter}}, Dial: upstream.Dial, Follow: upstream.Follower(), Log: slog.New(slog.DiscardHandler),
	})
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = member.Run(working) })
	failed := make(chan error, 1)
	running.Go(func() { failed <- server.Run(working) })
	s := &Sidecar{stop: func() { stop(); running.Wait() }}
	if err := member.Joined(ctx); err != nil {
		s.stop()
		return nil, err
	}
	for server.Ready() != nil {
		select {
		case err := <-failed:
			s.stop()
			return nil, err
		case <-ctx.Done():
			s.stop()
			return nil, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	s.Addr = server.Addresses()[0]
	s.pool = &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
		if err != nil {
			return nil, err
		}
		return end.Through(ctx, conn)
	}}
	return s, nil
}

// Pool leads through the sidecar.
func (s *Sidecar) Pool() lockmigrate.Pool { return s.pool }

// Close ends it.
func (s *Sidecar) Close() {
	_ = s.pool.Close()
	s.stop()
}
