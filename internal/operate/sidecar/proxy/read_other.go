//go:build !linux

package proxy

import "net"

// source reads a connection.
type source struct {
	conn net.Conn
	tls  encrypted
	err  error
}

func newSource(conn net.Conn) *source { return &source{conn: conn} }

// read appends what comes to a buffer. It returns io.EOF at the end.
func (s *source) read(to *buffer, _ func() bool) error { return s.tls.read(s.conn, to) }

type sink struct{ conn net.Conn }

func newSink(net.Conn) *sink { return nil }

func (*sink) try([]byte) int { return 0 }

// Here no connection is served without goroutines.
type (
	loop  struct{}
	loops struct{}
)

func newLoops(*Server) (none loops) { return none }
func (loops) run()                  {}
func (loops) close()                {}
func (*Server) park(*conn) bool     { return false }
func (*conn) unpark()               {}
func (*conn) unloop() error         { return nil }
