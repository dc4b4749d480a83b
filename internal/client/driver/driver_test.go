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

func TestAdvanceRunsToTheVerdict(t *testing.T) {
	s := redistest.Mini(t)
	d := newDriver(s.Pool())
	for _, ctx := range []context.Context{context.Background(), t.Context()} { // inline, and beside a cancellable caller
		s.Do("DEL", "k")
		out, err := d.Advance(ctx, taking(), protocol.Reply{}, mustNotAbandon(t))
		require.NoError(t, err)
		assert.Equal(t, protocol.Acquired, out.Step.Verdict)
		out, err = d.Advance(ctx, taking(), protocol.Reply{}, mustNotAbandon(t))
		require.NoError(t, err)
		assert.Equal(t, protocol.Busy, out.Step.Verdict)
	}
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

func TestAWaitForAConnectionEndsWithTheContext(t *testing.T) {
	pool := redistest.Mini(t).Pool()
	pool.MaxActive, pool.Wait = 1, true
	busy := pool.Get()
	defer busy.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	d := newDriver(pool)
	_, err := d.Advance(ctx, taking(), protocol.Reply{}, func(o Outcome) {
		assert.Equal(t, protocol.Failed, o.Step.Verdict, "nothing had been sent")
	})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	d.Close()
}

func TestAnAbandonedRunReachesItsVerdict(t *testing.T) {
	s := redistest.Mini(t)
	sent, proceed := make(chan struct{}), make(chan struct{})
	pool := &redistest.Faulty{Pool: s.Pool(), Before: func(int, string) { close(sent); <-proceed }}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-sent; cancel() }()
	d := newDriver(pool)
	var got Outcome
	out, err := d.Advance(ctx, taking(), protocol.Reply{}, func(o Outcome) { got = o })
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, protocol.Unsure, out.Step.Verdict, "under way")
	close(proceed)
	d.Close()
	assert.Equal(t, protocol.Acquired, got.Step.Verdict)
	assert.NotEmpty(t, s.Value("k"))
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
