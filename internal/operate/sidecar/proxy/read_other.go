//go:build !linux

package proxy

import "net"

// source reads a connection.
type source struct {
	conn net.Conn
	tls  encrypted
	id   int64 // 0: its connection never rests
}

func newSource(conn net.Conn, _ *conn) *source { return &source{conn: conn} }

// read appends what comes to a buffer. It returns io.EOF at the end.
func (s *source) read(to *buffer, _ func() bool) error { return s.tls.read(s.conn, to) }

func (s *source) onlyEnded(error) bool { return false }

type sink struct{ conn net.Conn }

func newSink(net.Conn) *sink { return nil }

func (*sink) try([]byte) int { return 0 }

type ends struct{}

func newEnds() *ends          { return nil }
func (*ends) run()            {}
func (*ends) close()          {}
func (*ends) forget(*source)  {}
func (*ends) park(*conn) bool { return false }
func (*ends) unpark(*conn)    {}
