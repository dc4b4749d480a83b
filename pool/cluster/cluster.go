// Package cluster connects the lock packages to a Redis Cluster.
//
//	pool, err := cluster.New(cluster.Options{Addrs: []string{"10.0.0.1:6379", "10.0.0.2:6379"}})
//	...
//	locker, err := modern.New(pool, modern.Options{FenceTTL: time.Minute})
//
// A Pool is a lockmigrate.Pool for legacy, modern and compat alike. Each lock's keys lie in one slot: the names of guards, queues
// and counters are made so. Each command goes to the master of that slot.
//
// # What it promises
//
//  1. MOVED and ASK are followed, for pipelines and pooled connections alike; a lock that is held or waited
//     for while its slot moves is renewed, woken and released as before.
//  2. A command that has certainly not run is tried again for as long as Options.Patience:
//     after a redirection, TRYAGAIN, CLUSTERDOWN, LOADING, READONLY, NOREPLICAS, or where a server cannot be reached. A command whose reply
//     was lost is never repeated here: the lock settles what became of it.
//  3. One master that hangs or is dead does not hold up locks whose keys other masters serve.
//
// # What no client can promise
//
// Replication is asynchronous. A master that dies before a lock reached its replica takes it with it
// (lost-update); the holder learns of it at its next renewal. modern.Options.Replicas makes that rarer. See
// docs/guarantees.md.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// Options of a Pool. Addrs is required.
type Options struct {
	// Addrs are host:port of some nodes; the others are found. Name more than one.
	Addrs []string

	// Dial connects to one node: the place for TLS, user and password. Connections must be in RESP2. Nil:
	// plain TCP without a password, 5 s to connect.
	Dial func(ctx context.Context, addr string) (redis.Conn, error)

	// Map translates the addresses that nodes tell of each other, where clients see them under others.
	// Nil: as they are.
	Map func(addr string) string

	// Patience is for how long a command that has certainly not run is tried again while the cluster fails
	// over. It should exceed cluster-node-timeout by a few seconds; a caller's context ends it earlier.
	// Zero: 20 s. Negative: not at all.
	Patience time.Duration

	// MaxIdle and MaxActive connections of the pool to each master. Zero: 8 idle, no limit. modern and
	// compat have a few connections of their own besides.
	MaxIdle, MaxActive int
}

// Pool connects to all masters of a cluster. It is safe for concurrent use.
type Pool struct{ routed }

// routed keeps what the lock packages need of a Pool from its users.
type routed = topology.Routed

// New returns a pool that asks the nodes for their slots with the first command.
func New(opts Options) (*Pool, error) {
	if len(opts.Addrs) == 0 {
		return nil, errors.New("cluster: a Pool needs the address of a node")
	}
	if err := topology.CheckAddrs(opts.Addrs); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if opts.Dial == nil {
		opts.Dial = topology.Plain(rawconn.DialContext, 5*time.Second)
	}
	if opts.Map == nil {
		opts.Map = topology.AsTold
	}
	return &Pool{topology.NewRouted(topology.Options{
		Find: opts.find, Dial: opts.Dial, Map: opts.Map, Patience: opts.Patience, MaxIdle: opts.MaxIdle, MaxActive: opts.MaxActive,
	})}, nil
}

// GetContext returns a connection that finds its server with each command, by the command's key, and follows redirections. Nothing
// is dialled before the first command. The context bounds the finding and dialling of servers until the first reply.
func (p *Pool) GetContext(ctx context.Context) (redis.Conn, error) {
	return topology.RouterOf(p).GetContext(ctx)
}

// Close closes the idle connections, and those in use when they come back.
func (p *Pool) Close() error { return topology.RouterOf(p).Close() }

// askTimeout bounds the question to one node: others are left to ask.
const askTimeout = time.Second

// find asks the known nodes, then those that were configured.
func (o Options) find(ctx context.Context, known []string) (*topology.Table, error) {
	var errs []error
	asked := map[string]bool{}
	for _, addr := range append(known, o.Addrs...) {
		if asked[addr] {
			continue
		}
		asked[addr] = true
		table, err := o.ask(ctx, addr)
		if err == nil {
			return table, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (o Options) ask(ctx context.Context, addr string) (*topology.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := o.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reply, err := redis.Values(redis.DoWithTimeout(conn, askTimeout, "CLUSTER", "SLOTS"))
	if err != nil {
		return nil, err
	}
	return topology.ReadSlots(reply, addr, o.Map)
}
