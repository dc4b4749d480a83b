package proxy

import "net"

// follow waits for the process before to end: no process that takes the listeners over may end before it has.
func (s *Server) follow(process *net.UnixConn) {
	ended := func() {}
	if s.opts.Follows != nil {
		ended = s.opts.Follows()
	}
	s.running.Go(func() {
		_, _ = process.Read(make([]byte, 1))
		_ = process.Close()
		ended()
	})
}

// leaveBefore ends the wait for the process before.
func (s *Server) leaveBefore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		_ = s.before.Close()
	}
}

// tellHeir lets the process that has the listeners know that this one has ended.
func (s *Server) tellHeir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heir != nil {
		_ = s.heir.Close()
	}
}
