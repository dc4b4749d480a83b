// Package rueidispool makes the pool that the lock packages take from the options of rueidis: the settings that a service has already.
//
//	settings := rueidis.ClientOption{InitAddress: []string{"redis.internal:6379"}, Username: "orders", Password: secret, TLSConfig: &tls.Config{}}
//	pool, err := rueidispool.New(ctx, settings)
//	...
//	locker, err := compat.New(pool, compat.Options{Namespace: "orders"})
//
// The connections are redigo's; no client of rueidis is made. InitAddress, Dialer, DialFn and DialCtxFn, TLSConfig, SelectDB, ClientName,
// Username and Password, AuthCredentialsFn, Sentinel and ForceSingleClient mean what they mean to rueidis. Timeouts and retries of
// commands are the lock packages' own: see Options.ReplyTimeout of each. ReplicaOnly is an error, and so is
// Standalone: locks need the master.
//
// It is a module of its own: a service that does not use rueidis gets nothing of it into its go.mod.
package rueidispool

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
	"github.com/redis/rueidis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// Pool is what the lock packages take. Close closes its connections; close the Lockers first.
type Pool interface {
	lockmigrate.Pool
	Close() error
}

// New returns a pool of the kind that rueidis.NewClient would choose: the master that sentinels name, with Sentinel.MasterSet; one server,
// with ForceSingleClient; else what the first of InitAddress that answers says it is, as rueidis does.
func New(ctx context.Context, o rueidis.ClientOption) (Pool, error) {
	switch {
	case len(o.InitAddress) == 0:
		return nil, errors.New("rueidispool: InitAddress is empty")
	case o.ReplicaOnly:
		return nil, errors.New("rueidispool: ReplicaOnly: locks need the master")
	case o.Standalone.EnableRedirect || len(o.Standalone.ReplicaAddress) > 0:
		return nil, errors.New("rueidispool: Standalone reads from replicas; locks need the master alone")
	}
	d := dialer{o: o, Dialer: o.Dialer, tls: o.TLSConfig, auth: o.AuthCredentialsFn, username: o.Username, password: o.Password, name: o.ClientName, db: o.SelectDB}
	if o.Sentinel.MasterSet != "" {
		s := dialer{o: o, Dialer: o.Sentinel.Dialer, tls: o.Sentinel.TLSConfig, username: o.Sentinel.Username, password: o.Sentinel.Password, name: o.Sentinel.ClientName}
		return made(sentinel.New(sentinel.Options{Addrs: o.InitAddress, Master: o.Sentinel.MasterSet, Dial: d.Dial, DialSentinel: s.Dial}))
	}
	single := o.ForceSingleClient
	if !single {
		var err error
		if single, err = d.alone(ctx); err != nil {
			return nil, err
		}
	}
	if !single {
		return made(cluster.New(cluster.Options{Addrs: o.InitAddress, Dial: d.Dial}))
	}
	if len(o.InitAddress) > 1 {
		return nil, errors.New("rueidispool: several addresses, and the server is no cluster")
	}
	return &redigo.Pool{MaxIdle: 8, DialContext: func(ctx context.Context) (redigo.Conn, error) { return d.Dial(ctx, o.InitAddress[0]) }}, nil
}

// made keeps a nil pointer from becoming a Pool that is not nil.
func made[P Pool](pool P, err error) (Pool, error) {
	if err != nil {
		return nil, err
	}
	return pool, nil
}

// alone asks whether the servers are no cluster.
func (d dialer) alone(ctx context.Context) (bool, error) {
	var errs []error
	for _, addr := range d.o.InitAddress {
		conn, err := d.Dial(ctx, addr)
		if err == nil {
			_, err = redigo.DoContext(conn, ctx, "CLUSTER", "SLOTS")
			_ = conn.Close()
		}
		var said redigo.Error
		switch {
		case err == nil:
			return false, nil
		case errors.As(err, &said) && strings.Contains(string(said), "cluster support disabled"):
			return true, nil
		}
		errs = append(errs, fmt.Errorf("rueidispool: is %s a cluster? %w (ForceSingleClient answers for one server)", addr, err))
	}
	return false, errors.Join(errs...)
}

// dialer makes connections as rueidis would.
type dialer struct {
	net.Dialer
	o                        rueidis.ClientOption
	tls                      *tls.Config
	auth                     func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error)
	username, password, name string
	db                       int
}

// Dial connects to a server. AuthCredentialsFn is asked for each connection, once its address is known.
func (d dialer) Dial(ctx context.Context, addr string) (redigo.Conn, error) {
	wire, err := d.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	username, password := d.username, d.password
	if d.auth != nil {
		credentials, err := d.auth(rueidis.AuthCredentialsContext{Address: wire.RemoteAddr()})
		if err != nil {
			_ = wire.Close()
			return nil, fmt.Errorf("rueidispool: AuthCredentialsFn: %w", err)
		}
		username, password = credentials.Username, credentials.Password
	}
	conn, err := redigo.DialContext(ctx, "tcp", addr, redigo.DialUsername(username), redigo.DialPassword(password), redigo.DialDatabase(d.db), redigo.DialClientName(d.name),
		redigo.DialContextFunc(func(context.Context, string, string) (net.Conn, error) { return wire, nil }))
	if err != nil {
		_ = wire.Close()
	}
	return conn, err
}

func (d dialer) connect(ctx context.Context, addr string) (net.Conn, error) {
	d.Timeout = cmp.Or(d.Timeout, 5*time.Second)
	switch {
	case d.o.DialCtxFn != nil:
		return d.o.DialCtxFn(ctx, addr, &d.Dialer, d.tls)
	case d.o.DialFn != nil:
		return d.o.DialFn(addr, &d.Dialer, d.tls)
	case d.tls != nil:
		return (&tls.Dialer{NetDialer: &d.Dialer, Config: d.tls}).DialContext(ctx, "tcp", addr)
	}
	return d.DialContext(ctx, "tcp", addr)
}
