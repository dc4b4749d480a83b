// Package goredis makes the pool that the lock packages take from the options of go-redis: the settings that a service has already.
//
//	settings := &redis.UniversalOptions{Addrs: []string{"redis.internal:6379"}, Username: "orders", Password: secret, TLSConfig: &tls.Config{}}
//	pool, err := goredis.New(settings)
//	...
//	locker, err := compat.New(pool, compat.Options{Namespace: "orders"})
//
// The connections are redigo's; no client of go-redis is made. Addresses, network, Dialer, TLSConfig, DialTimeout, DB, ClientName,
// Username and Password, CredentialsProvider and CredentialsProviderContext, the sentinels' user and password, MasterName, PoolSize,
// MaxIdleConns and ConnMaxIdleTime mean what they mean to go-redis. Timeouts and retries of commands are the lock packages' own:
// see Options.ReplyTimeout of each. An option that changes where a lock would be, or with which rights, and that cannot be
// followed, is an error: OnConnect, StreamingCredentialsProvider, Limiter, ReplicaOnly, NewClient, ClusterSlots.
//
// It is a module of its own: a service that does not use go-redis gets nothing of it into its go.mod.
package goredis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	redigo "github.com/gomodule/redigo/redis"
	"github.com/redis/go-redis/v9"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// Pool is what the lock packages take. Close closes its connections; close the Lockers first.
type Pool interface {
	lockmigrate.Pool
	Close() error
}

// New returns a pool of the kind that redis.NewUniversalClient would choose: the master that sentinels name, with a MasterName; a
// cluster, with IsClusterMode or several addresses; else one server. Nothing is dialled before the first command.
func New(o *redis.UniversalOptions) (Pool, error) {
	switch {
	case o == nil:
		return nil, errors.New("goredis: the options are nil")
	case o.MasterName != "" && (o.RouteByLatency || o.RouteRandomly || o.IsClusterMode):
		return nil, errors.New("goredis: MasterName with IsClusterMode, RouteByLatency or RouteRandomly reads from replicas; locks need the master alone: leave these out")
	case o.MasterName != "":
		return NewSentinel(o.Failover())
	case len(o.Addrs) > 1 || o.IsClusterMode:
		return NewCluster(o.Cluster())
	default:
		return NewServer(o.Simple())
	}
}

// NewServer returns a pool of connections to one server. redis.ParseURL makes such options of a URL.
func NewServer(o *redis.Options) (Pool, error) {
	if o == nil {
		return nil, errors.New("goredis: the options are nil")
	}
	d := dialer{network: o.Network, dial: o.Dialer, tls: o.TLSConfig, timeout: o.DialTimeout, name: o.ClientName, db: o.DB, username: o.Username, password: o.Password,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext}
	if err := refuse(map[string]bool{"OnConnect": o.OnConnect != nil, "StreamingCredentialsProvider": o.StreamingCredentialsProvider != nil, "Limiter": o.Limiter != nil}); err != nil {
		return nil, err
	}
	addr := cmp.Or(o.Addr, "localhost:6379")
	if strings.HasPrefix(addr, "/") && d.network == "" {
		d.network = "unix"
	}
	return &redigo.Pool{MaxIdle: cmp.Or(o.MaxIdleConns, 8), MaxActive: o.MaxActiveConns, IdleTimeout: o.ConnMaxIdleTime, Wait: o.MaxActiveConns > 0, DialContext: func(ctx context.Context) (redigo.Conn, error) { return d.Dial(ctx, addr) }}, nil
}

// NewSentinel returns a pool of connections to the master that sentinels name.
func NewSentinel(o *redis.FailoverOptions) (Pool, error) {
	if o == nil {
		return nil, errors.New("goredis: the options are nil")
	}
	if err := refuse(map[string]bool{"OnConnect": o.OnConnect != nil, "StreamingCredentialsProvider": o.StreamingCredentialsProvider != nil, "ReplicaOnly": o.ReplicaOnly}); err != nil {
		return nil, err
	}
	d := dialer{dial: o.Dialer, tls: o.TLSConfig, timeout: o.DialTimeout, name: o.ClientName, db: o.DB, username: o.Username, password: o.Password,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext}
	s := d
	s.db, s.username, s.password, s.provider, s.providerContext = 0, o.SentinelUsername, o.SentinelPassword, nil, nil
	return made(sentinel.New(sentinel.Options{Addrs: o.SentinelAddrs, Master: o.MasterName, Dial: d.Dial, DialSentinel: s.Dial, MaxIdle: o.MaxIdleConns, MaxActive: o.MaxActiveConns}))
}

// NewCluster returns a pool of connections to the masters of a cluster.
func NewCluster(o *redis.ClusterOptions) (Pool, error) {
	if o == nil {
		return nil, errors.New("goredis: the options are nil")
	}
	if err := refuse(map[string]bool{"OnConnect": o.OnConnect != nil, "StreamingCredentialsProvider": o.StreamingCredentialsProvider != nil, "NewClient": o.NewClient != nil, "ClusterSlots": o.ClusterSlots != nil}); err != nil {
		return nil, err
	}
	d := dialer{dial: o.Dialer, tls: o.TLSConfig, timeout: o.DialTimeout, name: o.ClientName, username: o.Username, password: o.Password,
		provider: o.CredentialsProvider, providerContext: o.CredentialsProviderContext}
	return made(cluster.New(cluster.Options{Addrs: o.Addrs, Dial: d.Dial, MaxIdle: o.MaxIdleConns, MaxActive: o.MaxActiveConns}))
}

// made keeps a nil pointer from becoming a Pool that is not nil.
func made[P Pool](pool P, err error) (Pool, error) {
	if err != nil {
		return nil, err
	}
	return pool, nil
}

// refuse names what is set and cannot be followed.
func refuse(set map[string]bool) error {
	for _, name := range []string{"OnConnect", "StreamingCredentialsProvider", "Limiter", "ReplicaOnly", "NewClient", "ClusterSlots"} {
		if set[name] {
			return fmt.Errorf("goredis: %s cannot be followed: the locks' connections are redigo's; make the pool with redigo, pool/sentinel or pool/cluster and a Dial of your own", name)
		}
	}
	return nil
}

// dialer makes connections as go-redis would.
type dialer struct {
	network, name, username, password string
	db                                int
	timeout                           time.Duration
	tls                               *tls.Config
	dial                              func(ctx context.Context, network, addr string) (net.Conn, error)
	provider                          func() (string, string)
	providerContext                   func(ctx context.Context) (string, string, error)
}

// Dial connects to a server. A Dialer of the options does TLS itself, as it does for go-redis.
func (d dialer) Dial(ctx context.Context, addr string) (redigo.Conn, error) {
	username, password := d.username, d.password
	switch {
	case d.providerContext != nil:
		var err error
		if username, password, err = d.providerContext(ctx); err != nil {
			return nil, fmt.Errorf("goredis: CredentialsProviderContext: %w", err)
		}
	case d.provider != nil:
		username, password = d.provider()
	}
	options := []redigo.DialOption{redigo.DialConnectTimeout(cmp.Or(d.timeout, 5*time.Second)), redigo.DialUsername(username), redigo.DialPassword(password), redigo.DialDatabase(d.db), redigo.DialClientName(d.name)}
	if d.dial != nil {
		options = append(options, redigo.DialContextFunc(d.dial))
	} else if d.tls != nil {
		options = append(options, redigo.DialUseTLS(true), redigo.DialTLSConfig(d.tls))
	}
	return redigo.DialContext(ctx, cmp.Or(d.network, "tcp"), addr, options...)
}
