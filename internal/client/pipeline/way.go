package pipeline

import "github.com/lockmigrate/lockmigrate/internal/topology"

// Way is a Line.
type Way = *Line

// Over is New over servers.
func Over(servers topology.Servers, opts Options) *Line {
	opts.Servers = servers
	return New(opts)
}
