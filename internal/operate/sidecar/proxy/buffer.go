package proxy

import (
	"net"
	"sync"

	"github.com/lockmigrate/lockmigrate/pool/rawconn"
)

// bufferSize is what one read takes at most: as much as Redis reads at once. It has room for a pipeline, and for most values.
const bufferSize = 16 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// buffer holds what was read and is not passed on yet. It has memory only while there is something to hold: an idle
// connection costs none.
type buffer struct {
	b      []byte
	n      int
	pooled *[bufferSize]byte // what b is made of, unless it has grown
}

func (f *buffer) bytes() []byte { return f.b[:f.n] }

// room returns where the next read goes.
func (f *buffer) room() []byte {
	switch {
	case f.b == nil:
		f.pooled = buffers.Get().(*[bufferSize]byte)
		f.b = f.pooled[:]
	case f.n == len(f.b):
		grown := make([]byte, 2*len(f.b))
		copy(grown, f.b)
		f.free()
		f.b = grown
	}
	return f.b[f.n:]
}

// drop forgets the first bytes.
func (f *buffer) drop(n int) {
	if n > 0 {
		f.n = copy(f.b, f.b[n:f.n])
	}
}

// rest gives the memory back if nothing is held.
func (f *buffer) rest() {
	if f.n == 0 {
		f.free()
		f.b = nil
	}
}

func (f *buffer) free() {
	if f.pooled != nil {
		buffers.Put(f.pooled)
		f.pooled = nil
	}
}

// idleSize is how much memory a read waits with.
const idleSize = 512

// peer reads and writes a connection. A read waits with a little memory, and takes more at once while much comes.
type peer struct {
	net.Conn
	little []byte
	much   bool  // the last read filled what it was given
	over   error // it has ended in a loop
}

func newPeer(conn net.Conn) *peer { return &peer{Conn: rawconn.Quiet(conn)} }

// read appends what comes to a buffer.
func (p *peer) read(to *buffer) error {
	if p.over != nil {
		return p.over
	}
	if p.much || to.n > 0 {
		n, err := p.Read(to.room())
		to.n += n
		p.much = n >= idleSize
		return err
	}
	to.rest()
	if p.little == nil {
		p.little = make([]byte, idleSize)
	}
	n, err := p.Read(p.little)
	if n > 0 {
		to.n = copy(to.room(), p.little[:n])
	}
	p.much = n == idleSize
	return err
}
