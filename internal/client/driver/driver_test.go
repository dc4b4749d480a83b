package driver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDriver(pool interface {
	GetContext(context.Context) (redis.Conn, error)
}) *PerAttempt {
	return &PerAttempt{Pool: pool, Now: time.Now, ReplyTimeout: time.Second}
}

func taking() *protocol.LegacyAcquire {
	return &protocol.LegacyAcquire{Dialect: protocol.JedisMS, Key: "k", Lease: time.Minute, Poll: time.Millisecond}
}

func mustNotAbandon(t *testing.T) func(Outcome) {
	return func(o Outcome) { t.Errorf("abandoned with %+v, though its caller stayed", o) }
}

func TestNothingIsSentForAContextThatHasEnded(t *testing.T) {
	pool := &redistest.Faulty{Pool: redistest.Mini(t).Pool()}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("left")
	cancel(reason)
	out, err := newDriver(pool).Advance(ctx, taking(), protocol.Reply{}, mustNotAbandon(t))
	assert.ErrorIs(t, err, reason)
	assert.Equal(t, protocol.Failed, out.Step.Verdict, "certainly not acquired")
	assert.Empty(t, pool.Commands())
}

// A lock can be given back over the pool after Close, with or without a context that ends.
func TestAClosedDriverRunsOnItsCallers(t *testing.T) {
	s := redistest.Mini(t)
	d := newDriver(s.Pool())
	d.Close()
	out, err := d.Advance(t.Context(), taking(), protocol.Reply{}, mustNotAbandon(t))
	require.NoError(t, err)
	assert.Equal(t, protocol.Acquired, out.Step.Verdict)
}
