package observe

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Listening observes the connections that pass through this process: those of a proxy between clients and their server. It sees
// replies too, and costs the server nothing but a TIME now and then. It sees the clients behind this process only. Its methods are
// safe for concurrent use.
type Listening struct {
	endpoint *endpoint.Endpoint
	addr     string // of the server

	mu    sync.Mutex
	obs   *Observer
	tap   *traffic.Tap
	ahead time.Duration // this host's clock less the server's: what is taken off its stamps
	window
}

// Listen returns a Listening that has seen nothing. It compares this host's clock with the server's: skews are against the server's clock, as
// they are from MONITOR.
func Listen(ctx context.Context, opts Options, end *endpoint.Endpoint, addr string) (*Listening, error) {
	l := &Listening{obs: New(opts), endpoint: end, addr: addr}
	if err := l.compare(ctx); err != nil {
		return nil, err
	}
	l.began = time.Now()
	l.tap = traffic.NewTap(&l.mu, func() protocol.Instant { return protocol.InstantOf(time.Now().Add(-l.ahead)) }, l.obs.Keys, l.obs.Take)
	return l, nil
}

// compare takes in what the two clocks show by now.
func (l *Listening) compare(ctx context.Context) error {
	conn, err := l.endpoint.DialAddr(ctx, l.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	clocks, err := endpoint.CompareClocks(ctx, conn, 5, nil)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead = clocks.Ahead
	return nil
}

// KeepComparing asks the server for its time every ten seconds until ctx ends.
func (l *Listening) KeepComparing(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
			_ = l.compare(ctx) // a server that is away for a while does not change its clock
		}
	}
}

// Tap returns a connection to the server that passes everything on, and is listened to.
func (l *Listening) Tap(conn net.Conn) net.Conn { return l.tap.Conn(conn) }

// Finish ends the window. What passes from then on is not looked at.
func (l *Listening) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.took == 0 {
		l.end()
		l.tap.End()
		l.obs.Finish()
	}
}

// Report says what is known so far.
func (l *Listening) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return observers{l.obs}.report(&l.window)
}

// Profile writes down the fleet as it was measured so far.
func (l *Listening) Profile() profile.Profile {
	l.mu.Lock()
	defer l.mu.Unlock()
	return observers{l.obs}.profile(&l.window)
}

// Seen returns how many commands were taken in, and why some may be missing.
func (l *Listening) Seen() (commands int64, missing []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tap.Heard().Commands, l.tap.Heard().NotSeen()
}
