package demo

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
)

// sidecarName is of the service that comes back.
const sidecarName = "java"

// joinBehind starts a sidecar, and Java members that do what they always did, but for the address that they connect to.
func (s *stage) joinBehind(ctx context.Context, n int) error {
	member, err := sidecar.New(ctx, sidecar.Options{Pool: s.opts.Pool, Namespace: s.store.Namespace, Name: sidecarName, Lease: lease})
	if err != nil {
		return err
	}
	dialect, err := member.ParseDialect("")
	if err != nil {
		return err
	}
	upstream, err := proxy.NewUpstream(ctx, s.opts.End, []string{s.key()})
	if err != nil {
		return err
	}
	rewriter := member.Rewriter(dialect)
	if s.opts.End.Kind == endpoint.Cluster {
		rewriter = proxy.Alone(rewriter)
	}
	server := proxy.New(proxy.Options{
		Listeners: []proxy.Listener{{Address: "127.0.0.1:0", Rewriter: rewriter}}, Dial: upstream.Dial, Log: slog.New(slog.DiscardHandler),
	})
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { _ = member.Run(working) })
	failed := make(chan error, 1)
	running.Go(func() { failed <- server.Run(working) })
	var pool *redis.Pool
	s.closers = append(s.closers, func() {
		if pool != nil {
			_ = pool.Close()
		}
		stop()
		running.Wait()
	})
	if err := member.Joined(ctx); err != nil {
		return err
	}
	for server.Ready() != nil {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	addr := server.Addresses()[0]
	s.say("lockmigrate sidecar --namespace %s --name %s --listen %s", s.store.Namespace, sidecarName, addr)
	s.say("%d java services come back as they were, with the sidecar's address in place of the server's: they hold tokens now", n)
	pool = &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return s.opts.End.Through(ctx, conn)
	}}
	return s.joinJava(n, pool)
}
