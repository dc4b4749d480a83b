package endpoint

import (
	"context"
	"io"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	sentinels "github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// LockPool is a pool for the lock packages.
type LockPool interface {
	lockmigrate.Pool
	io.Closer
}

// patience is for how long a command goes on trying during a failover: shorter than a service's, because
// somebody sits and waits.
const patience = 5 * time.Second

// Locks returns a pool for locks, whatever the URL leads to: it goes along with failovers, and in a cluster
// to the master of each key.
func (e *Endpoint) Locks() (LockPool, error) {
	switch e.Kind {
	case Cluster:
		return cluster.New(cluster.Options{Addrs: e.Addrs, Dial: e.DialAddr, Patience: patience})
	case Sentinel:
		return sentinels.New(sentinels.Options{
			Addrs: e.Addrs, Master: e.Master, Dial: e.DialAddr, Patience: patience,
			DialSentinel: func(ctx context.Context, addr string) (redis.Conn, error) {
				conn, _, err := e.connect(ctx, addr, login{user: e.sentinelUser, password: e.sentinelPass})
				return conn, err
			},
		})
	default:
		return e.Pool(), nil
	}
}
