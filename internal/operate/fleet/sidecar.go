package fleet

import (
	"cmp"
	"context"
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
	*sidecar.Sidecar
	Addr  string
	pool  *redis.Pool
	Close func() // ends it, once
}

// drain is how long commands may take to end when a sidecar does.
const drain = 5 * time.Second

// StartSidecar starts the sidecar of a service, and returns when it has joined its namespace and listens. The end is the server that has the service's
// other keys; in a cluster it is the master of a key, or the one that has all keys of the namespace.
func StartSidecar(ctx context.Context, o sidecar.Options, end *endpoint.Endpoint, key string, at sidecar.Listener) (*Sidecar, error) {
	member, err := sidecar.New(ctx, o)
	if err != nil {
		return nil, err
	}
	keys := member.Patterns()
	if key != "" {
		keys = []string{key}
	}
	upstream, err := proxy.NewUpstream(ctx, end, keys)
	if err != nil {
		return nil, err
	}
	at.Address = cmp.Or(at.Address, "127.0.0.1:0")
	server, err := member.Server(upstream, drain, nil, at)
	if err != nil {
		return nil, err
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(working) }()
	s := &Sidecar{Sidecar: member, pool: &redis.Pool{MaxIdle: 4}}
	s.Close = sync.OnceFunc(func() {
		_ = s.pool.Close()
		stop()
		<-ended
	})
	for server.Ready() != nil {
		select {
		case err := <-ended:
			stop()
			return nil, err
		case <-ctx.Done():
			s.Close()
			return nil, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	s.Addr = server.Addresses()[0]
	s.pool.DialContext = func(ctx context.Context) (redis.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
		if err != nil {
			return nil, err
		}
		return end.Through(ctx, conn)
	}
	return s, nil
}

// Pool leads through the sidecar.
func (s *Sidecar) Pool() lockmigrate.Pool { return s.pool }
