//go:build !unix

package proxy

import (
	"math"
	"net"
)

// source reads a connection.
type source struct {
	conn net.Conn
	tls  encrypted
}

func newSource(conn net.Conn) *source { return &source{conn: conn} }

// read appends what comes to a buffer. It returns io.EOF at the end.
func (s *source) read(to *buffer) error { return s.tls.read(s.conn, to) }

func descriptorsAtMost() int { return math.MaxInt32 }
