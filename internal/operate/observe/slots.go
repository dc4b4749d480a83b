package observe

import (
	"context"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// tables are how many looks at a cluster's slots are kept: five seconds.
const tables = 10

// askSlots asks who has which slot of a cluster; nil outside of one, or where that is not known.
func (w *watch) askSlots(ctx context.Context) *topology.Table {
	if !w.cluster {
		return nil
	}
	reply, err := redis.Values(redis.DoContext(w.guard.conn, ctx, "CLUSTER", "SLOTS"))
	if err != nil {
		return nil
	}
	table, _ := topology.ReadSlots(reply, w.addr, topology.AsTold)
	return table
}

// keep adds the table of a look. The caller holds mu, or is alone.
func (w *watch) keep(table *topology.Table) {
	if table != nil {
		w.slots = append(w.slots[max(0, len(w.slots)+1-tables):], table)
	}
}

// given tells a command by which another node gives this one a slot as a whole (Valkey 9, Redis 8.4): it sends again what clients did there to the
// slot's keys, and MONITOR shows it like a client, which would have locks of its own. A client cannot write to a slot that the node does not have
// yet, unless it is sent there key by key: CLIENT LIST shows that one, as it shows all clients. A line of MONITOR may be read long after the slot
// has come, so the tables of some looks before count as well.
func (w *watch) given(c *traffic.Command) bool {
	if _, client := w.clients[c.Addr]; client || len(w.slots) == 0 || c.InScript() || len(c.Words) < 2 {
		return false
	}
	switch c.Words[0] {
	case "SET", "SETNX", "GETSET", "DEL", "PEXPIREAT", "RESTORE", "HSET", "HMSET", "HINCRBY", "ZADD":
		slot := protocol.Slot(c.Words[1])
		elsewhere := func(t *topology.Table) bool { return t.At(slot) != w.addr }
		if len(w.givers) < 10_000 && slices.ContainsFunc(w.slots, elsewhere) {
			w.givers[strings.Clone(c.Addr)] = true
		}
	}
	return w.givers[c.Addr]
}
