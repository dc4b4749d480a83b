package observe

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Listening observes the connections that pass through this process: those of a proxy between clients and their server. It sees
// replies too, and costs the server nothing but a TIME now and then. It sees the clients behind this process only. Its methods are
// safe for concurrent use.
type Listening struct {
	mu    sync.Mutex
	talk  *dialogues
	ahead time.Duration // this host's clock less the server's: what is taken off its stamps
	window
}

// Listen returns a Listening that has seen nothing. Ahead is by how much this host's clock is ahead of the server's: skews are
// against the server's clock, as they are from MONITOR.
func Listen(opts Options, clocks endpoint.Clocks) *Listening {
	l := &Listening{talk: newDialogues(New(opts)), window: window{began: time.Now()}, ahead: clocks.Ahead}
	l.Compare(clocks)
	return l
}

// Compare takes in what the two clocks show by now.
func (l *Listening) Compare(clocks endpoint.Clocks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead = clocks.Ahead
}

// KeepComparing asks the server for its time every ten seconds until ctx ends. The first answer has to come at once.
func (l *Listening) KeepComparing(ctx context.Context, end *endpoint.Endpoint, addr string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
		if clocks, err := ClocksOf(ctx, end, addr); err == nil { // a server that is away for a while does not change its clock
			l.Compare(clocks)
		}
	}
}

// ClocksOf compares this host's clock with a server's.
func ClocksOf(ctx context.Context, end *endpoint.Endpoint, addr string) (endpoint.Clocks, error) {
	conn, err := end.DialAddr(ctx, addr)
	if err != nil {
		return endpoint.Clocks{}, err
	}
	defer conn.Close()
	return endpoint.CompareClocks(ctx, conn, 5, nil)
}

// Tap returns a connection to the server that passes everything on, and is listened to.
func (l *Listening) Tap(conn net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The server's MONITOR names a client by the same address.
	return &tapped{Conn: conn, l: l, d: l.talk.begin(conn.LocalAddr().String(), false)}
}

// tapped is a connection that is listened to.
type tapped struct {
	net.Conn
	l *Listening
	d *dialogue
}

func (t *tapped) hears(r *respReader, data []byte) {
	l := t.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.d.closed || l.took > 0 || len(data) == 0 {
		return
	}
	l.talk.now(protocol.InstantOf(time.Now().Add(-l.ahead)))
	if !r.feed(data) {
		l.talk.stop(t.d, "what they carry is not Redis's protocol")
	}
}

// Write notes a request before the server can answer it.
func (t *tapped) Write(data []byte) (int, error) {
	t.hears(&t.d.requests, data)
	return t.Conn.Write(data)
}

func (t *tapped) Read(data []byte) (int, error) {
	n, err := t.Conn.Read(data)
	t.hears(&t.d.replies, data[:n])
	return n, err
}

func (t *tapped) Close() error {
	t.l.mu.Lock()
	t.l.talk.close(t.d)
	t.l.mu.Unlock()
	return t.Conn.Close()
}

// CloseWrite tells the server that nothing more comes.
func (t *tapped) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// SetLinger makes Close a reset, where seconds are 0.
func (t *tapped) SetLinger(seconds int) error {
	if c, ok := t.Conn.(interface{ SetLinger(int) error }); ok {
		return c.SetLinger(seconds)
	}
	return nil
}

// Finish ends the window. What passes from then on is not looked at.
func (l *Listening) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.took == 0 {
		l.end()
		l.talk.end()
		l.talk.o.Finish()
	}
}

// Report says what is known so far.
func (l *Listening) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(l.talk.o.Report())
}

// Profile writes down the fleet as it was measured so far.
func (l *Listening) Profile() profile.Profile {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.profiled(l.talk.o.Profile())
}

// Seen returns how many commands were taken in, and why some may be missing.
func (l *Listening) Seen() (commands int64, missing []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.talk.out.Commands, l.talk.out.NotSeen()
}
