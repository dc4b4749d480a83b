package observe

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// Listening observes the connections that pass through this process: those of a proxy between clients and their server. It sees
// replies too, and costs the server nothing but a TIME now and then. It sees the clients behind this process only. Its methods are
// safe for concurrent use.
type Listening struct {
	clock *lockers.ServerClock

	mu  sync.Mutex
	obs *Observer
	tap *traffic.Tap
	window
}

// Listen returns a Listening that has seen nothing. Its stamps follow the server's clock, which it asks over the pool: skews are against that clock,
// as they are from MONITOR.
func Listen(ctx context.Context, opts Options, pool lockmigrate.Pool) (*Listening, error) {
	l := &Listening{obs: New(opts), clock: lockers.NewServerClock(pool, time.Second)}
	if err := l.clock.Sync(ctx); err != nil {
		return nil, err
	}
	l.began = time.Now()
	l.tap = traffic.NewTap(&l.mu, func() protocol.Instant { return protocol.InstantOf(l.clock.Now()) }, l.obs.Keys, l.obs.Take)
	return l, nil
}

// KeepTime asks the server for its time now and then until ctx ends.
func (l *Listening) KeepTime(ctx context.Context) {
	for lifetime.Sleep(ctx, l.clock.Refresh) == nil {
		_ = l.clock.Sync(ctx) // a server that is away for a while does not change its clock
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
