package observe

import (
	"context"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// givers are nodes of a cluster that give this one a slot as a whole (Valkey 9, Redis 8.4). MONITOR shows what they send like the commands of a client:
// what clients did there to the slot's keys. They would be taken for clients with locks of their own. A client of this node cannot write to
// a slot that the node does not have yet, so whoever does is a giver until CLIENT LIST shows a client at its address.
type givers struct {
	addr    string // of this node
	cluster bool
	table   *topology.Table // nil: not known
	those   map[string]bool
	clients map[string]Peer // that CLIENT LIST has shown last: an address may have been another's before
	wonders bool            // one is new: who has its address is to be asked soon
}

// sent tells whether a command of an address that CLIENT LIST has not shown is a giver's.
func (g *givers) sent(c *traffic.Command) bool {
	if _, client := g.clients[c.Addr]; client || g.table == nil || c.InScript() {
		return false
	}
	if g.those[c.Addr] {
		return true
	}
	switch c.Words[0] {
	case "SET", "SETNX", "GETSET", "DEL", "PEXPIREAT", "RESTORE", "HSET", "HMSET", "HINCRBY", "ZADD":
	default:
		return false
	}
	if len(c.Words) < 2 || g.table.At(protocol.Slot(c.Words[1])) == g.addr {
		return false
	}
	g.those[strings.Clone(c.Addr)], g.wonders = true, true
	return true
}

// ask asks who has which slot; nil where that is not known.
func (g *givers) ask(ctx context.Context, conn redis.Conn) *topology.Table {
	if !g.cluster {
		return nil
	}
	reply, err := redis.Values(redis.DoContext(conn, ctx, "CLUSTER", "SLOTS"))
	if err != nil {
		return nil
	}
	table, _ := topology.ReadSlots(reply, g.addr, topology.AsTold)
	return table
}

// owns takes in what ask has returned.
func (g *givers) owns(table *topology.Table) {
	if table != nil {
		g.table = table
	}
}

// know takes in who is connected.
func (g *givers) know(clients map[string]Peer, nodes []string) {
	g.wonders = false
	if clients != nil {
		g.clients = clients
	}
	if g.those == nil || len(g.those) > 10_000 {
		g.those = map[string]bool{}
	}
	for addr := range clients {
		delete(g.those, addr)
	}
	for _, addr := range nodes {
		g.those[addr] = true
	}
}
