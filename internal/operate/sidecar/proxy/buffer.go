package proxy

import "sync"

// bufferSize is what one read takes at most: twice as much as Redis reads at once. Values of 64 KiB pass as fast as where the kernel moves them.
const bufferSize = 32 << 10

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
