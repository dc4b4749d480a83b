//go:build !unix

package proxy

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
)

func (s *Server) inherit() (map[string]net.Listener, error) {
	if s.opts.Heir != "" {
		return nil, errors.New("listeners cannot be handed over on this system")
	}
	return nil, nil
}

func (s *Server) bequeath(context.Context, *sync.WaitGroup, chan<- struct{}) error { return nil }

func descriptorsAtMost() int { return math.MaxInt32 }
