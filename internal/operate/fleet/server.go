package fleet

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// resolution is how often TTLs move: well below the 100 ms that lock clients poll with.
const resolution = 5 * time.Millisecond

// Server is a Redis-like server inside this process, for a first look without a server.
//
// It is miniredis, whose TTLs stand still until told: here they pass with the real time. It is no evidence
// about Redis; what it lacks, it refuses.
type Server struct {
	mini *miniredis.Miniredis
	stop chan struct{}
	done chan struct{}
}

// StartServer starts a server on a free port of the loopback.
func StartServer() (*Server, error) {
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		return nil, fmt.Errorf("start the embedded server: %w", err)
	}
	s := &Server{mini: mini, stop: make(chan struct{}), done: make(chan struct{})}
	go s.tick()
	return s, nil
}

// Addr returns its host:port.
func (s *Server) Addr() string { return s.mini.Addr() }

// Close stops it and forgets its keys.
func (s *Server) Close() {
	close(s.stop)
	<-s.done
	s.mini.Close()
}

// tick lets TTLs pass with this process's monotonic clock.
func (s *Server) tick() {
	defer close(s.done)
	ticker := time.NewTicker(resolution)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
			now := time.Now()
			s.mini.FastForward(now.Sub(last))
			last = now
		}
	}
}
