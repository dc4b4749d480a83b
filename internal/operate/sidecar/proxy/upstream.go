package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Upstream is the server behind a URL: the master that sentinels name, or the one of a cluster that has the namespace's keys.
type Upstream struct {
	end *endpoint.Endpoint
	key string // in a cluster: the master of this key, whose slot may move

	mu   sync.Mutex
	addr string // empty: to be found out
}

// ErrManyMasters says that the namespace's keys lie on several servers.
var ErrManyMasters = errors.New("a client behind a sidecar sees one server")

// NewUpstream returns the server that has the keys of all patterns. A client sees one server, and its replies cannot be put
// together from several without reading them. So a cluster of several masters is refused unless the patterns have one hash
// tag; other keys are answered by the server with MOVED.
func NewUpstream(ctx context.Context, end *endpoint.Endpoint, patterns []string) (*Upstream, error) {
	u := &Upstream{end: end}
	if end.Kind != endpoint.Cluster {
		if end.Kind == endpoint.Single {
			u.addr = end.Addrs[0]
		}
		return u, nil
	}
	masters, err := end.Masters(ctx)
	if err != nil {
		return nil, err
	}
	key, one := oneSlot(patterns)
	if !one && len(masters) > 1 {
		return nil, fmt.Errorf("the keys %s lie on several of the cluster's %d masters, and %w", strings.Join(patterns, ", "), len(masters), ErrManyMasters)
	}
	u.key = key
	return u, nil
}

// oneSlot tells whether all keys of the patterns are in one slot, and names a key of it.
func oneSlot(patterns []string) (key string, one bool) {
	const special = `*?[\` // what does not stand for itself in a pattern
	slot := -1
	for _, p := range patterns {
		if strings.ContainsAny(p, special) {
			before, after, _ := strings.Cut(p, "{")
			tag, _, closed := strings.Cut(after, "}")
			if tag == "" || !closed || strings.ContainsAny(before+tag, special) {
				return "", false
			}
		}
		if s := protocol.Slot(p); slot >= 0 && s != slot {
			return "", false
		} else {
			key, slot = p, s
		}
	}
	return key, true
}

// Dial connects to the server. It sends no command.
func (u *Upstream) Dial(ctx context.Context) (net.Conn, error) {
	addr, err := u.address(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := u.end.DialBare(ctx, addr)
	if err != nil && u.end.Kind != endpoint.Single {
		u.set("") // a failover may have made another one the master
	}
	return conn, err
}

func (u *Upstream) address(ctx context.Context) (string, error) {
	u.mu.Lock()
	addr := u.addr
	u.mu.Unlock()
	if addr != "" {
		return addr, nil
	}
	addr, err := u.end.MasterOf(ctx, u.key)
	if err == nil && addr == "" {
		err = fmt.Errorf("no master serves the slot of %q", u.key)
	}
	if err == nil {
		u.set(addr)
	}
	return addr, err
}

func (u *Upstream) set(addr string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.addr = addr
}

// Watch asks once a second which server is the master, and tells of each change after which connections to the one before must be ended:
// it may not know yet that it is the master no more.
func (u *Upstream) Watch(ctx context.Context, every time.Duration, changed func(to string)) {
	if u.end.Kind == endpoint.Single {
		return
	}
	last, doubt := "", time.Time{}
	for {
		pause := every
		if addr, err := u.end.MasterOf(ctx, u.key); err == nil && addr != "" {
			u.set(addr)
			switch {
			case last == "" || addr == last || u.end.Kind == endpoint.Cluster && u.knows(ctx, last, addr):
				last, doubt = addr, time.Time{}
			case u.end.Kind == endpoint.Cluster && doubt.IsZero():
				doubt = time.Now()
				fallthrough
			case u.end.Kind == endpoint.Cluster && time.Since(doubt) < agreed:
				pause = min(every, agreed/10)
			default:
				last, doubt = addr, time.Time{}
				changed(addr)
			}
		}
		if !topology.Sleep(ctx, pause) {
			return
		}
	}
}

// agreed is how long the nodes of a cluster may name different owners of a slot: who moves it tells them one after the other, and some hear it by gossip.
const agreed = 500 * time.Millisecond

// Follower is Options.Follow; nil where it is no cluster.
func (u *Upstream) Follower() func(refusal string) (again, elsewhere bool) {
	if u.end.Kind != endpoint.Cluster {
		return nil
	}
	return u.follow
}

// follow does not follow a request on a key of another slot.
func (u *Upstream) follow(refusal string) (again, elsewhere bool) {
	switch is, slot, _ := topology.Read(refusal); is {
	case topology.Moved:
		if slot != protocol.Slot(u.key) {
			return false, false
		}
		u.set("")
		return true, true
	case topology.Ask: // the key moves, and stays reachable: until the whole slot has moved
		return slot == protocol.Slot(u.key), false
	case topology.Later:
		return true, false
	}
	return false, false
}

// knows tells that a node itself says that another one has the slot: it refuses each request on it then, and Follow sees that.
func (u *Upstream) knows(ctx context.Context, node, owner string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := u.end.DialNode(ctx, node)
	if err != nil {
		return false
	}
	defer conn.Close()
	reply, err := redis.Values(redis.DoContext(conn, ctx, "CLUSTER", "SLOTS"))
	if err != nil {
		return false
	}
	table, err := topology.ReadSlots(reply, node, topology.AsTold)
	return err == nil && table.At(protocol.Slot(u.key)) == owner
}

// Alone makes a node of a cluster look like a server by itself, so that no client follows the cluster past the proxy.
func (u *Upstream) Alone(r Rewriter) Rewriter {
	if u.end.Kind != endpoint.Cluster {
		return r
	}
	return alone{r}
}

type alone struct{ Rewriter }

// said are the commands that another node is told again, in this order.
var said = []string{"AUTH", "HELLO", "SELECT"}

func (a alone) Commands() map[string]Keys {
	commands := maps.Clone(a.Rewriter.Commands())
	for _, name := range append(said, "CLUSTER") {
		commands[name] = Keys{}
	}
	return commands
}

func (a alone) Rewrite(c *Client, args [][]byte, out []byte) (Verdict, []byte) {
	name := strings.ToUpper(string(args[0]))
	if name == "CLUSTER" {
		return Refuse, append(out, "ERR This instance has cluster support disabled"...)
	}
	verdict := Pass
	if _, known := a.Rewriter.Commands()[name]; known {
		verdict, out = a.Rewriter.Rewrite(c, args, out)
	}
	if verdict == Pass && slices.Contains(said, name) {
		if c.Said == nil {
			c.Said = map[string][]byte{}
		}
		c.Said[name] = wire.Append(nil, args...)
	}
	return verdict, out
}
