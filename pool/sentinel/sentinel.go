// Package sentinel connects the lock packages to the master that Redis Sentinel names.
//
//	pool, err := sentinel.New(sentinel.Options{Addrs: []string{"10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"}, Master: "locks"})
//	...
//	locker, err := modern.New(pool, modern.Options{FenceTTL: time.Minute})
//
// All sentinels are asked at once, and the newest of their answers counts (the highest configuration epoch): one that a partition
// has cut off does not lead back to the old master. Nor does it while those that know better do not answer. Nor does the one that
// leads a failover, while that is going on (TestOlderAnswersDoNotLeadBack, TestTheLeaderOfAFailoverNamesTheNewMaster). Whatever is
// connected to is asked for its role first. A server that answers READONLY loses the connection, and the sentinels are asked
// again.
//
// The pool listens for +switch-master on a connection to each sentinel. When one is heard it asks all of them and turns to the new
// master. It drops the idle connections to the old one, without waiting for an error. So a master that hangs, or that only the
// sentinels cannot reach, is not asked any further. Waiters for locks listen to the new one.
//
// A command that has certainly not run is tried again while the sentinels fail over, for as long as
// Options.Patience; one whose reply was lost is never repeated here: the lock settles what became of it.
//
// # What no client can promise
//
// Replication is asynchronous: a promoted replica may never have seen a lock (lost-update). And a master that is cut off from the
// sentinels goes on serving the clients that are with it; min-replicas-to-write and min-replicas-max-lag stop it.
// modern.Options.Replicas makes both rarer; fencing tokens keep the writes in order. See docs/guarantees.md.
package sentinel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// Options of a Pool. Addrs and Master are required.
type Options struct {
	// Addrs are host:port of the sentinels. Name all of them.
	Addrs []string

	// Master is the name that the sentinels know the master by.
	Master string

	// Dial connects to a server: the place for TLS, user, password and database. Connections must be in
	// RESP2. Nil: plain TCP without a password, database 0, 5 s to connect.
	Dial func(ctx context.Context, addr string) (redis.Conn, error)

	// DialSentinel connects to a sentinel. Nil: plain TCP without a password, 1 s to connect.
	DialSentinel func(ctx context.Context, addr string) (redis.Conn, error)

	// Map translates the addresses that sentinels tell, where clients see the servers under others. Nil: as
	// they are.
	Map func(addr string) string

	// Patience is for how long a command that has certainly not run is tried again during a failover. It
	// should exceed down-after-milliseconds by a few seconds; a caller's context ends it earlier. Zero:
	// 20 s. Negative: not at all.
	Patience time.Duration

	// MaxIdle and MaxActive connections of the pool. Zero: 8 idle, no limit. modern and compat have a few
	// connections of their own besides.
	MaxIdle, MaxActive int
}

// Pool connects to the master. It is safe for concurrent use.
type Pool struct {
	routed
	watcher *watcher
}

// routed keeps what the lock packages need of a Pool from its users.
type routed = topology.Routed

// New returns a pool that asks the sentinels with the first command.
func New(opts Options) (*Pool, error) {
	switch {
	case len(opts.Addrs) == 0:
		return nil, errors.New("sentinel: a Pool needs the addresses of the sentinels")
	case opts.Master == "":
		return nil, errors.New("sentinel: a Pool needs the master's name")
	}
	if err := topology.CheckAddrs(opts.Addrs); err != nil {
		return nil, fmt.Errorf("sentinel: %w", err)
	}
	if opts.Dial == nil {
		opts.Dial = topology.Plain(rawconn.DialContext, 5*time.Second)
	}
	if opts.DialSentinel == nil {
		opts.DialSentinel = topology.Plain(rawconn.DialContext, askTimeout)
	}
	if opts.Map == nil {
		opts.Map = topology.AsTold
	}
	p, finder := &Pool{}, &finder{opts: opts}
	p.watcher = &watcher{opts: opts, refresh: func() { topology.RouterOf(p).Refresh() }}
	p.watcher.ctx, p.watcher.cancel = context.WithCancel(context.Background())
	p.routed = topology.NewRouted(topology.Options{
		Find: func(ctx context.Context, _ []string) (*topology.Table, error) {
			p.watcher.start()
			return finder.find(ctx)
		},
		Dial: opts.dialMaster, Patience: opts.Patience, MaxIdle: opts.MaxIdle, MaxActive: opts.MaxActive,
	})
	return p, nil
}

// GetContext returns a connection to the master: each command goes to the one that stands. Nothing is dialled before the first
// command. The context bounds the finding and dialling of the master until the first reply.
func (p *Pool) GetContext(ctx context.Context) (redis.Conn, error) {
	return topology.RouterOf(p).GetContext(ctx)
}

// Close closes the idle connections and those to the sentinels, and connections in use when they come back.
func (p *Pool) Close() error {
	p.watcher.close()
	return topology.RouterOf(p).Close()
}

// askTimeout bounds the question to one sentinel.
const askTimeout = time.Second

// finder asks for the master.
type finder struct {
	opts Options

	mu    sync.Mutex
	addr  string // the newest answer so far
	epoch int64
	heard time.Time
}

// forgetAfter is for how long an answer counts more than older ones. Sentinels tell each other of a failover
// within seconds; a minute later an older answer means that they were set up again.
const forgetAfter = time.Minute

// find asks all sentinels and takes the newest answer.
func (f *finder) find(ctx context.Context) (*topology.Table, error) {
	addr, epoch, errs := topology.NewestOf(f.opts.Addrs, func(sentinel string) (string, int64, error) { return f.opts.ask(ctx, sentinel) })
	if epoch < 0 {
		return nil, errors.Join(errs...)
	}
	return topology.Single(f.newest(addr, epoch, len(errs) == 0)), nil
}

// newest returns the address of an answer, or of the one before it where that was newer and those who gave
// it may only be silent at the moment: a server that was replaced may come up again, and be a master for
// everybody who asks it, until it is told.
func (f *finder) newest(addr string, epoch int64, all bool) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch < f.epoch && !all && time.Since(f.heard) < forgetAfter {
		return f.addr
	}
	f.addr, f.epoch, f.heard = addr, epoch, time.Now()
	return addr
}

func (o Options) ask(ctx context.Context, sentinel string) (addr string, epoch int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sentinel %s: %w", sentinel, err)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := o.DialSentinel(ctx, sentinel)
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	addr, epoch, err = topology.AskSentinel(func(name string, args ...any) (any, error) {
		return redis.DoWithTimeout(conn, askTimeout, name, args...)
	}, o.Master)
	if err != nil {
		return "", 0, err
	}
	return o.Map(addr), epoch, nil
}

// dialMaster refuses a server that is no master. A user who may not ask finds out with the first write.
func (o Options) dialMaster(ctx context.Context, addr string) (redis.Conn, error) {
	conn, err := o.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	role, err := redis.Values(redis.DoWithTimeout(conn, askTimeout, "ROLE"))
	if _, refused := err.(redis.Error); refused {
		return conn, nil
	}
	if err == nil && len(role) > 0 {
		if name, _ := redis.String(role[0], nil); name == "master" {
			return conn, nil
		}
		err = fmt.Errorf("%s is no master any more", addr)
	}
	if err == nil {
		err = errors.New("ROLE: an empty reply")
	}
	_ = conn.Close()
	return nil, err
}
