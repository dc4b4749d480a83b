package topology

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/gomodule/redigo/redis"
)

// ReadSlots takes the reply to CLUSTER SLOTS: ranges of first slot, last slot, master, replicas. A node without a host
// is where the asked one is; translate is applied to every address. Two masters of one address are an error: one of
// them would never be looked at.
func ReadSlots(reply []any, asked string, translate func(addr string) string) (*Table, error) {
	table := NewTable()
	ids := map[string]string{} // of the masters, by address
	for _, entry := range reply {
		span, err := redis.Values(entry, nil)
		if err != nil || len(span) < 3 {
			return nil, errors.New("CLUSTER SLOTS: not a range of slots")
		}
		from, err1 := redis.Int(span[0], nil)
		to, err2 := redis.Int(span[1], nil)
		if err := errors.Join(err1, err2); err != nil || from < 0 || to >= slots || from > to {
			return nil, errors.New("CLUSTER SLOTS: not a range of slots")
		}
		for i, node := range span[2:] {
			addr, id, err := nodeOf(node, asked)
			if err != nil {
				return nil, err
			}
			addr = translate(addr)
			if i == 0 {
				if other := ids[addr]; other != "" && id != "" && other != id {
					return nil, fmt.Errorf("CLUSTER SLOTS: two masters have the address %s", addr)
				}
				ids[addr] = id
				table.Assign(from, to, addr)
			}
			table.Nodes = append(table.Nodes, addr)
		}
	}
	return table, nil
}

// nodeOf reads one node: host, port, and from later versions its id and what else is known of it. The host is "?" where the
// server prefers names and the node has none: it tells the node's IP address beside that.
func nodeOf(node any, asked string) (addr, id string, err error) {
	fields, err := redis.Values(node, nil)
	if err != nil || len(fields) < 2 {
		return "", "", errors.New("CLUSTER SLOTS: not a node")
	}
	host, _ := redis.String(fields[0], nil)
	port, err := redis.Int(fields[1], nil)
	if err != nil || port <= 0 || port > 65535 {
		return "", "", errors.New("CLUSTER SLOTS: a node without a port")
	}
	if len(fields) > 2 {
		id, _ = redis.String(fields[2], nil)
	}
	if host == "?" && len(fields) > 3 {
		more, _ := redis.StringMap(fields[3], nil)
		host = more["ip"]
	}
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), id, nil
}
