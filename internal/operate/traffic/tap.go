package traffic

import (
	"net"
	"sync"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Tap listens to the connections that pass through this process: those of a proxy between clients and their server.
type Tap struct {
	mu   sync.Locker // held while something is taken in
	talk *dialogues
	now  func() protocol.Instant
	over bool
}

// NewTap returns a Tap. It holds mu while keys learns and take is told. Now is the server's clock as well as it is known.
func NewTap(mu sync.Locker, now func() protocol.Instant, keys *Keys, take func(*Command)) *Tap {
	return &Tap{mu: mu, now: now, talk: newDialogues(keys, take)}
}

// Conn returns a connection to the server that passes everything on, and is listened to.
func (t *Tap) Conn(conn net.Conn) net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The server's MONITOR names a client by the same address.
	return &tapped{Conn: conn, tap: t, d: t.talk.begin(conn.LocalAddr().String(), false)}
}

// End ends it, with mu held. What passes from then on is not looked at.
func (t *Tap) End() {
	if !t.over {
		t.over = true
		t.talk.end()
	}
}

// Heard says what was listened to, and what could not be read. It is for those who hold mu.
func (t *Tap) Heard() *Captured { return t.talk.out }

// tapped is a connection that is listened to.
type tapped struct {
	net.Conn
	tap *Tap
	d   *dialogue
}

func (c *tapped) hears(r *respReader, data []byte) {
	t := c.tap
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.d.closed || t.over || len(data) == 0 {
		return
	}
	t.talk.now(t.now())
	if !r.feed(data) {
		t.talk.stop(c.d, "what they carry is not Redis's protocol")
	}
}

// Write notes a request before the server can answer it.
func (c *tapped) Write(data []byte) (int, error) {
	c.hears(&c.d.requests, data)
	return c.Conn.Write(data)
}

func (c *tapped) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	c.hears(&c.d.replies, data[:n])
	return n, err
}

func (c *tapped) Close() error {
	c.tap.mu.Lock()
	c.tap.talk.close(c.d)
	c.tap.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite tells the server that nothing more comes.
func (c *tapped) CloseWrite() error {
	if conn, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return nil
}

// SetLinger makes Close a reset, where seconds are 0.
func (c *tapped) SetLinger(seconds int) error {
	if conn, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return conn.SetLinger(seconds)
	}
	return nil
}
