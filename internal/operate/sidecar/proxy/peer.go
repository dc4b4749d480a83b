package proxy

import (
	"crypto/tls"
	"net"

	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// idleSize is how much memory a read waits with.
const idleSize = 512

// peer reads and writes a connection. A read waits with a little memory, and takes more at once while much comes.
type peer struct {
	net.Conn
	quiet  net.Conn
	little []byte
	much   bool  // the last read filled what it was given
	over   error // it has ended in a loop
}

func newPeer(conn net.Conn) *peer { return &peer{Conn: conn, quiet: rawconn.Quiet(conn)} }

func (p *peer) Write(b []byte) (int, error) { return p.quiet.Write(b) }

// read appends what comes to a buffer.
func (p *peer) read(to *buffer) error {
	if p.over != nil {
		return p.over
	}
	if p.much || to.n > 0 {
		n, err := p.quiet.Read(to.room())
		to.n += n
		p.much = n >= idleSize
		return err
	}
	to.rest()
	if p.little == nil {
		p.little = make([]byte, idleSize)
	}
	n, err := p.quiet.Read(p.little)
	if n > 0 {
		to.n = copy(to.room(), p.little[:n])
	}
	p.much = n == idleSize
	return err
}

// socket is what is below TLS. To close TLS takes time when the other side does not read.
func (p *peer) socket() net.Conn {
	if t, ok := p.Conn.(*tls.Conn); ok {
		return t.NetConn()
	}
	return p.Conn
}

// closeWrite tells the other side that nothing more comes.
func (p *peer) closeWrite() {
	if t, ok := p.Conn.(*tls.Conn); ok {
		_ = t.CloseWrite()
	}
	if h, ok := p.socket().(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
	}
}

// reset ends a connection so that the other side sees an error and not an end.
func (p *peer) reset() {
	c := p.socket()
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
