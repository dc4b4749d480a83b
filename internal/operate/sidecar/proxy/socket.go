package proxy

import (
	"crypto/tls"
	"net"
)

// plain tells that the kernel sees what both carry.
func plain(a, b net.Conn) bool { return socket(a) == a && socket(b) == b }

// closeWrite tells the other side that nothing more comes.
func closeWrite(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		_ = t.CloseWrite()
	}
	if h, ok := socket(c).(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
	}
}

// reset ends a connection so that the other side sees an error and not an end.
func reset(c net.Conn) {
	c = socket(c)
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}

// socket is what is below TLS. To close TLS takes time when the other side does not read.
func socket(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}
