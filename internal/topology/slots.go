package topology

import (
	"errors"
	"net"
	"strconv"

	"github.com/gomodule/redigo/redis"
)

// ReadSlots takes the reply to CLUSTER SLOTS: ranges of first slot, last slot, master, replicas. A host that
// a node does not know is the one that was asked; translate is applied to every address.
func ReadSlots(reply []any, asked string, translate func(addr string) string) (*Table, error) {
	table := NewTable()
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
			addr, err := nodeOf(node, asked)
			if err != nil {
				return nil, err
			}
			addr = translate(addr)
			if i == 0 {
				table.Assign(from, to, addr)
			}
			table.Nodes = append(table.Nodes, addr)
		}
	}
	return table, nil
}

// nodeOf reads one node: host, port, and more.
func nodeOf(node any, asked string) (addr string, err error) {
	fields, err := redis.Values(node, nil)
	if err != nil || len(fields) < 2 {
		return "", errors.New("CLUSTER SLOTS: not a node")
	}
	host, _ := redis.String(fields[0], nil)
	port, err := redis.Int(fields[1], nil)
	if err != nil || port <= 0 || port > 65535 {
		return "", errors.New("CLUSTER SLOTS: a node without a port")
	}
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(asked)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}
