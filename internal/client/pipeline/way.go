package pipeline

import "github.com/lockmigrate/lockmigrate/internal/topology"

// Way is a Conn.
type Way = *Conn

// Over is New over servers.
func Over(servers topology.Servers, opts Options) *Conn {
	opts.Servers = servers
	return New(opts)
}
