package fleet

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Old is a client of the old scheme: the shipped machines with the code's own habits, on a clock of its own.
type Old struct {
	Pool    lockmigrate.Pool
	Dialect *protocol.Dialect
	Lease   time.Duration
	Poll    time.Duration
	Offset  time.Duration // by how much its clock is ahead
}

func (o *Old) now() protocol.Instant { return protocol.InstantOf(time.Now()).Add(o.Offset) }

// drive runs a machine on one connection.
func (o *Old) drive(ctx context.Context, m protocol.Machine) (protocol.Verdict, error) {
	conn, err := o.Pool.GetContext(ctx)
	if err != nil {
		return protocol.Failed, err
	}
	defer conn.Close()
	var reply protocol.Reply
	for {
		switch step := m.Next(o.now(), reply); step.Kind {
		case protocol.Send:
			reply, err = wire.Do(conn, replyTimeout, step.Command)
		case protocol.Sleep:
			if err := lifetime.Sleep(ctx, step.Sleep); err != nil {
				return protocol.Busy, err
			}
			reply = protocol.Reply{Kind: protocol.Woke}
		default:
			return step.Verdict, err
		}
	}
}

// Acquire polls until the lock is held or ctx ends. Nobody tells the holder anything.
func (o *Old) Acquire(ctx context.Context, key string) (Held, error) {
	m := &protocol.LegacyAcquire{
		Dialect: o.Dialect, Key: key, Owner: fmt.Sprintf("%08x-0000-4000-8000-%012x", rand.Uint32(), rand.Uint64()>>16), Lease: o.Lease, Poll: o.Poll,
		Patience: 1000 * time.Hour, Faithful: true,
	}
	verdict, err := o.drive(ctx, m)
	if verdict == protocol.Acquired {
		return &oldLock{o, m}, nil
	}
	return nil, cmp.Or(err, fmt.Errorf("the key is not to be had: verdict %d", verdict))
}

type oldLock struct {
	*Old
	took *protocol.LegacyAcquire
}

func (l *oldLock) Context() context.Context { return context.Background() }

func (l *oldLock) Release(ctx context.Context) error {
	_, err := l.drive(ctx, &protocol.LegacyRelease{
		Dialect: l.Dialect, Key: l.took.Key, Policy: l.Dialect.Release, Value: l.took.Value(), Expiry: l.took.Expiry(), Faithful: true,
	})
	return err
}
