package locks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis/rueidislock"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/handover"
)

// Rueidislock is a half of rueidislock. It wants the locker's options KeyMajority 1, FallbackSETPX and ExtendInterval at most a quarter of
// KeyValidity, and gets that validity and KeyPrefix.
//
// A context that rueidislock ends says that the lock is lost. It ends one up to an ExtendInterval after the server has let the lock go, when the server
// does not answer. So the key's TTL is looked at as well: as long as half of the validity is left, the lock lasts for that half.
func Rueidislock(name string, locker rueidislock.Locker, prefix string, validity time.Duration) lockmigrate.Locker {
	type lock struct {
		context.Context
		key string
		end context.CancelFunc
	}
	take := func(by func(context.Context, string) (context.Context, context.CancelFunc, error)) func(context.Context, string) (*lock, error) {
		return func(ctx context.Context, key string) (*lock, error) {
			// The lock would end with ctx: the attempt's end must not reach it once it is held.
			waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
			stop := context.AfterFunc(ctx, giveUp)
			held, end, err := by(waiting, key)
			if !stop() && err == nil { // too late
				end()
				err = context.Cause(ctx)
			}
			if err == nil {
				return &lock{held, key, func() { end(); giveUp() }}, nil
			}
			giveUp()
			if errors.Is(err, rueidislock.ErrNotLocked) {
				err = fmt.Errorf("%w: %w", lockmigrate.ErrNotAcquired, err)
			}
			return nil, err
		}
	}
	try := take(locker.TryWithContext)
	return handover.Wrap(name, handover.Funcs[*lock]{
		// WithContext waits for an invalidation alone, and for ever where it misses one.
		Acquire: func(ctx context.Context, key string) (*lock, error) {
			for {
				l, err := try(ctx, key)
				var late net.Error // also when it had to dial
				if !errors.Is(err, lockmigrate.ErrNotAcquired) && (ctx.Err() != nil || !errors.As(err, &late) || !late.Timeout()) {
					return l, err // a deadline that is not ctx's is rueidislock's own for one try
				}
				select {
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				case <-time.After(50 * time.Millisecond):
				}
			}
		},
		TryAcquire: try,
		Extend: func(ctx context.Context, l *lock) error {
			c := locker.Client()
			left, err := c.Do(ctx, c.B().Pttl().Key(prefix+":0:"+l.key).Build()).AsInt64()
			if err == nil && time.Duration(left)*time.Millisecond < validity/2 {
				err = errors.New("rueidislock has not extended it")
			}
			return err
		},
		Release: func(_ context.Context, l *lock) error {
			l.end() // waits until the server has deleted the key, for a validity at most
			return nil
		},
		Lost: func(l *lock) <-chan struct{} { return l.Done() },
		TTL:  validity / 2,
	})
}
