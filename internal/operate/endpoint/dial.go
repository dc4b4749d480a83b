package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/rawconn"
	sentinels "github.com/lockmigrate/lockmigrate/pool/sentinel"
)

const (
	connectTimeout  = 5 * time.Second  // for TCP, TLS and the first commands together
	sentinelTimeout = 2 * time.Second  // for one sentinel; all are asked at once
	replyTimeout    = 15 * time.Second // for one reply of a pooled connection
	clientName      = "lockmigrate"    // what CLIENT LIST shows
)

// Dial connects to the server, or to the master that the sentinels name. For a cluster it connects to the
// first node that answers; Masters has the rest.
func (e *Endpoint) Dial(ctx context.Context) (redis.Conn, error) {
	conn, _, err := e.dial(ctx)
	return conn, err
}

// Masters returns the addresses that together hold all keys: one, or those of a cluster's masters.
func (e *Endpoint) Masters(ctx context.Context) ([]string, error) {
	t, err := e.table(ctx, false)
	return t.Masters, err
}

// StillMasters is an error where the masters are others than before: what was read of one that was replaced may lack keys, or be old.
func (e *Endpoint) StillMasters(ctx context.Context, before []string) error {
	now, err := e.Masters(ctx)
	if err != nil {
		return err
	}
	slices.Sort(now)
	if was := slices.Sorted(slices.Values(before)); !slices.Equal(now, was) {
		return &Error{What: fmt.Sprintf("the masters were %s, and now are %s", strings.Join(was, ", "), strings.Join(now, ", ")), Advice: "a failover, or a node that came or went: run it again"}
	}
	return nil
}

// Quorum is an error where all sentinels that tell say that they are too few to replace a master: they may be cut off, and others
// may have replaced it.
func (e *Endpoint) Quorum(ctx context.Context) error {
	if e.Kind != Sentinel {
		return nil
	}
	_, epoch, errs := topology.NewestOf(e.Addrs, func(sentinel string) (none struct{}, epoch int64, err error) {
		ctx, cancel := context.WithTimeout(ctx, sentinelTimeout)
		defer cancel()
		conn, err := e.dialSentinel(ctx, sentinel)
		if err == nil {
			defer conn.Close()
			_, err = redis.DoContext(conn, ctx, "SENTINEL", "CKQUORUM", e.Master)
		}
		return none, 0, err
	})
	for _, err := range errs {
		if epoch < 0 && isRefusal(err, "NOQUORUM") {
			return &Error{What: "the sentinels may be cut off from others: " + err.Error(), Advice: "name more sentinels in the URL, or wait until they see each other", Cause: err}
		}
	}
	return nil
}

// MasterOf returns the address of the master that has a key.
func (e *Endpoint) MasterOf(ctx context.Context, key string) (string, error) {
	t, err := e.table(ctx, false)
	if err != nil {
		return "", err
	}
	return t.At(protocol.Slot(key)), nil
}

// Node is one server behind an endpoint.
type Node struct {
	Addr    string
	Replica bool
}

// Nodes returns the masters and behind them their replicas: each may be the master tomorrow. What
// a plain URL names stands alone: where its replicas are reached from here it does not say.
func (e *Endpoint) Nodes(ctx context.Context) (nodes []Node, err error) {
	t, err := e.table(ctx, true)
	for i, addr := range append(t.Masters, t.Nodes...) {
		if !slices.ContainsFunc(nodes, func(n Node) bool { return n.Addr == addr }) {
			nodes = append(nodes, Node{addr, i >= len(t.Masters)})
		}
	}
	return nodes, err
}

// table asks who serves what; with replicas, for these too. Nodes may then name a server twice. With an error it is empty.
func (e *Endpoint) table(ctx context.Context, replicas bool) (t topology.Table, err error) {
	switch e.Kind {
	case Sentinel:
		return e.askSentinels(ctx, replicas)
	case Cluster:
		return e.askCluster(ctx, replicas)
	}
	return *topology.Single(e.Addrs[0]), nil
}

// DialNode connects to one of Nodes, whatever its role.
func (e *Endpoint) DialNode(ctx context.Context, addr string) (redis.Conn, error) {
	conn, _, err := e.dialAddr(ctx, addr, true)
	return conn, err
}

// DialRaw connects to one of Masters and returns the connection itself, authenticated and in the right
// database, for a caller that speaks the protocol on its own.
func (e *Endpoint) DialRaw(ctx context.Context, addr string) (net.Conn, error) {
	_, raw, err := e.dialAddr(ctx, addr, false)
	if err != nil {
		return nil, err
	}
	return raw, raw.SetDeadline(time.Time{})
}

// DialAddr connects to one of Masters.
func (e *Endpoint) DialAddr(ctx context.Context, addr string) (redis.Conn, error) {
	conn, _, err := e.dialAddr(ctx, addr, false)
	return conn, err
}

// Pool returns a pool of connections to the server or the sentinels' master.
func (e *Endpoint) Pool() *redis.Pool {
	return &redis.Pool{
		MaxIdle:     8,
		IdleTimeout: time.Minute,
		DialContext: e.Dial,
		TestOnBorrow: func(c redis.Conn, since time.Time) error {
			if time.Since(since) < 10*time.Second {
				return nil
			}
			_, err := redis.DoWithTimeout(c, time.Second, "PING")
			return err
		},
	}
}

func (e *Endpoint) dial(ctx context.Context) (conn redis.Conn, at string, err error) {
	addrs := e.Addrs // of a cluster any node will do
	if e.Kind != Cluster {
		if addrs, err = e.Masters(ctx); err != nil {
			return nil, "", err
		}
	}
	var first error
	for _, addr := range addrs {
		if conn, err = e.DialAddr(ctx, addr); err == nil {
			return conn, addr, nil
		}
		first = cmp.Or(first, err)
	}
	return nil, "", first
}

// login is who to be on a connection, and where.
type login struct {
	user, password string
	db             int
}

// dialAddr connects to a master, or to any server.
func (e *Endpoint) dialAddr(ctx context.Context, addr string, anyRole bool) (redis.Conn, net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, raw, err := e.connect(ctx, addr, login{e.User, e.password, e.DB})
	if err != nil {
		return nil, nil, err
	}
	if e.Kind == Sentinel && !anyRole {
		if err := mustBeMaster(ctx, conn, addr); err != nil {
			_ = conn.Close()
			return nil, nil, err
		}
	}
	return conn, raw, nil
}

// connect opens one connection and goes through its first commands. The TLS layer is ours and not
// redigo's, so that the connection below redigo is the one to speak on.
func (e *Endpoint) connect(ctx context.Context, addr string, who login) (redis.Conn, net.Conn, error) {
	var raw net.Conn
	conn, err := redis.DialContext(ctx, e.network(), addr,
		redis.DialContextFunc(func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
			raw, err = e.open(ctx, network, addr, rawconn.Quiet)
			return raw, err
		}),
		redis.DialReadTimeout(replyTimeout), redis.DialWriteTimeout(replyTimeout))
	if err == nil {
		if err = introduce(ctx, conn, who); err != nil {
			_ = conn.Close()
			if e.tls != nil && closed(err) {
				err = &tlsError{err, true}
			}
		}
	}
	var explained *Error
	switch {
	case err == nil:
		return conn, raw, nil
	case errors.Is(context.Cause(ctx), context.Canceled):
		return nil, nil, context.Cause(ctx)
	case errors.As(err, &explained), isRefusal(err, ""):
		return nil, nil, Explain(err)
	default:
		return nil, nil, explainIO("cannot connect to "+e.announced(addr), err)
	}
}

// announced is an address, and who named it where the URL does not: behind NAT it may lead nowhere from here.
func (e *Endpoint) announced(addr string) string {
	switch {
	case slices.Contains(e.Addrs, addr):
	case e.Kind == Cluster:
		return addr + ", which the cluster announces"
	case e.Kind == Sentinel:
		return addr + ", which the sentinels name"
	}
	return addr
}

func (e *Endpoint) network() string {
	if e.unix {
		return "unix"
	}
	return "tcp"
}

// DialBare connects to one of Masters, with TLS where the URL wants it, and sends no command. The caller
// authenticates.
func (e *Endpoint) DialBare(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := e.open(ctx, e.network(), addr, func(c net.Conn) net.Conn { return c })
	if err != nil {
		return nil, explainIO("cannot connect to "+e.announced(addr), err)
	}
	return conn, nil
}

// Through logs in on a connection that leads to the server by another way, such as a sidecar, and closes it on an error.
func (e *Endpoint) Through(ctx context.Context, raw net.Conn) (redis.Conn, error) {
	conn := redis.NewConn(raw, replyTimeout, replyTimeout)
	if err := introduce(ctx, conn, login{e.User, e.password, e.DB}); err != nil {
		_ = conn.Close()
		return nil, Explain(err)
	}
	return conn, nil
}

func (e *Endpoint) open(ctx context.Context, network, addr string, wrap func(net.Conn) net.Conn) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}} // gone within two minutes
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if conn = wrap(conn); e.tls == nil {
		return conn, nil
	}
	config := e.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(addr)
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &tlsError{err, false}
	}
	return secure, nil
}

// introduce authenticates, chooses the database and gives the connection its name.
func introduce(ctx context.Context, conn redis.Conn, who login) error {
	if who.password != "" {
		args := []any{who.password}
		if who.user != "" {
			args = []any{who.user, who.password}
		}
		if _, err := redis.DoContext(conn, ctx, "AUTH", args...); err != nil {
			return withoutArguments(err)
		}
	}
	if _, err := redis.DoContext(conn, ctx, "PING"); err != nil && !isRefusal(err, "NOPERM") {
		return err
	}
	if who.db != 0 {
		if _, err := redis.DoContext(conn, ctx, "SELECT", who.db); err != nil {
			return err
		}
	}
	if _, err := redis.DoContext(conn, ctx, "CLIENT", "SETNAME", clientName); err != nil && !isRefusal(err, "") {
		return err
	}
	return nil
}

// withoutArguments cuts a refusal of AUTH to what cannot hold the password: servers and proxies that do not
// know the command answer with its arguments.
func withoutArguments(err error) error {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	if r := refusalOf(string(refused)); r.what != "" {
		return redis.Error(strings.TrimSpace(r.begins + " " + r.holds))
	}
	if strings.Contains(string(refused), "wrong number of arguments") {
		return &Error{What: "the server knows no users, only a password", Advice: "leave the user out of the URL: redis://:password@host", Cause: redis.Error("ERR")}
	}
	return &Error{What: "the server refuses to authenticate this client", Advice: "check that it is a Redis server, and the user and password", Cause: redis.Error("ERR")}
}

// isRefusal tells that the server answered with an error of a kind, any for "".
func isRefusal(err error, kind string) bool {
	var refused redis.Error
	return errors.As(err, &refused) && strings.HasPrefix(string(refused), kind)
}

// mustBeMaster refuses a server that lost its mastership after the sentinels named it.
func mustBeMaster(ctx context.Context, conn redis.Conn, addr string) error {
	role, err := redis.Values(redis.DoContext(conn, ctx, "ROLE"))
	if err != nil {
		if isRefusal(err, "") { // a user without the right, or a proxy: a write will tell
			return nil
		}
		return explainIO("cannot ask "+addr+" for its role", err)
	}
	if len(role) > 0 {
		if name, err := redis.String(role[0], nil); err == nil && name != "master" {
			return &Error{What: fmt.Sprintf("%s is no master any more", addr), Advice: "a failover is under way; try again in a moment"}
		}
	}
	return nil
}

func (e *Endpoint) dialSentinel(ctx context.Context, addr string) (redis.Conn, error) {
	conn, _, err := e.connect(ctx, addr, login{user: e.sentinelUser, password: e.sentinelPass})
	return conn, err
}

// askSentinels returns the master that the newest answer of all sentinels names; with replicas also these.
func (e *Endpoint) askSentinels(ctx context.Context, replicas bool) (t topology.Table, err error) {
	t, epoch, errs := topology.NewestOf(e.Addrs, func(sentinel string) (topology.Table, int64, error) { return e.askSentinel(ctx, sentinel, replicas) })
	if epoch >= 0 {
		return t, nil
	}
	for _, err := range errs { // what a sentinel says tells more than that another one is dead
		if explained, is := err.(*Error); is && (explained.Cause == nil || isRefusal(explained.Cause, "")) {
			return t, err
		}
	}
	return t, errs[0]
}

func (e *Endpoint) askSentinel(ctx context.Context, sentinel string, replicas bool) (t topology.Table, epoch int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sentinelTimeout)
	defer cancel()
	conn, err := e.dialSentinel(ctx, sentinel)
	if err != nil {
		return t, 0, err
	}
	defer conn.Close()
	addr, epoch, err := topology.AskSentinel(func(name string, args ...any) (any, error) { return redis.DoContext(conn, ctx, name, args...) }, e.Master)
	switch {
	case errors.Is(err, topology.ErrNoMaster):
		return t, 0, &Error{What: fmt.Sprintf("the sentinel %s knows no master %q", sentinel, e.Master), Advice: "check the name; redis-cli -p 26379 SENTINEL masters lists them"}
	case errors.Is(err, topology.ErrNoEpoch):
		return t, 0, &Error{What: fmt.Sprintf("the sentinel %s does not say how new its answer is", sentinel), Advice: "check that no proxy stands in between"}
	case isRefusal(err, "ERR unknown command"):
		return t, 0, &Error{What: sentinel + " is no sentinel", Advice: "its port is 26379 by default; for a plain server write redis://", Cause: err}
	case err != nil:
		return t, 0, Explain(err)
	}
	var list []any
	if replicas {
		if list, err = redis.Values(redis.DoContext(conn, ctx, "SENTINEL", "SLAVES", e.Master)); err != nil { // REPLICAS since 5.0
			return t, 0, Explain(err)
		}
	}
	t.Masters = []string{addr}
	for _, entry := range list {
		if fields, err := redis.StringMap(entry, nil); err == nil {
			t.Nodes = append(t.Nodes, net.JoinHostPort(fields["ip"], fields["port"]))
		}
	}
	return t, epoch, nil
}

// askCluster asks the first node that answers which master serves which slot. CLUSTER SLOTS leaves out replicas that are down or have
// just begun; with replicas, Nodes has them too.
func (e *Endpoint) askCluster(ctx context.Context, replicas bool) (t topology.Table, err error) {
	conn, asked, err := e.dial(ctx)
	if err != nil {
		return t, err
	}
	defer conn.Close()
	slots, err := redis.Values(redis.DoContext(conn, ctx, "CLUSTER", "SLOTS"))
	switch {
	case isRefusal(err, "ERR This instance has cluster support disabled"), isRefusal(err, "ERR unknown command"):
		return t, &Error{What: "the server is not part of a cluster", Advice: "write redis:// instead of redis+cluster://", Cause: err}
	case err != nil:
		return t, Explain(err)
	}
	table, err := topology.ReadSlots(slots, asked, topology.AsTold)
	if err != nil {
		return t, &Error{What: "the cluster's servers cannot be read: " + err.Error(), Advice: "check that it is a Redis Cluster, and that no proxy stands in between"}
	}
	if n := table.Served(); n != 16384 {
		return t, &Error{What: fmt.Sprintf("the cluster serves %d of 16384 slots", n), Advice: "see CLUSTER INFO on one of its nodes"}
	}
	if replicas {
		if text, err := redis.String(redis.DoContext(conn, ctx, "CLUSTER", "NODES")); err == nil {
			table.Nodes = append(table.Nodes, replicasIn(text, asked, table.Nodes)...)
		}
	}
	return *table, nil
}

// replicasIn reads CLUSTER NODES: a node a line, with its id, host:port@bus[,name[,more]], flags, and more. It leaves out nodes
// that have no address, and those that are known already, by address or by name.
func replicasIn(text, asked string, known []string) (addrs []string) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		flags := strings.Split(fields[2], ",")
		told, names, _ := strings.Cut(fields[1], "@")
		at := strings.LastIndexByte(told, ':')
		if at < 0 || !slices.Contains(flags, "slave") || slices.Contains(flags, "noaddr") || slices.Contains(flags, "handshake") {
			continue
		}
		host, port := strings.Trim(told[:at], "[]"), told[at+1:]
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strings.ContainsAny(host, "[]") {
			continue
		}
		if host == "" {
			host, _, _ = net.SplitHostPort(asked)
		}
		name := strings.Split(names+",", ",")[1]
		if addr := net.JoinHostPort(host, port); !slices.Contains(known, addr) && !slices.Contains(known, net.JoinHostPort(name, port)) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

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
			Addrs: e.Addrs, Master: e.Master, Dial: e.DialAddr, DialSentinel: e.dialSentinel, Patience: patience,
		})
	default:
		return e.Pool(), nil
	}
}
