package driver

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

func newConn(t *testing.T, s *redistest.Server, change func(*SharedOptions)) *Shared {
	t.Helper()
	o := SharedOptions{
		Dial:         s.Dial,
		Now:          func() protocol.Instant { return protocol.InstantOf(time.Now()) },
		ReplyTimeout: 5 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	l := NewShared(o)
	t.Cleanup(func() { l.Close(); l.Wait() })
	return l
}

func TestRefusalIsOneCallersOwn(t *testing.T) {
	s := redistest.Mini(t)
	l := newConn(t, s, nil)
	s.Do("HSET", "h", "f", "v")
	reply, err := l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "h"})
	assert.Error(t, err)
	assert.Equal(t, protocol.Fault, reply.Kind)
	assert.Contains(t, reply.Text, "WRONGTYPE")
	reply, err = l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "absent"})
	assert.NoError(t, err)
	assert.Equal(t, protocol.Nil, reply.Kind)
}

// A cancelled caller is back at once, its run is finished behind it, and the connection goes on.
func TestCancelledRunIsFinished(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		l := newConn(t, s, nil)
		require.NoError(t, l.Connect(t.Context(), ""))
		s.Do("CLIENT", "PAUSE", 300, "WRITE")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		m := &protocol.ModernAcquire{Key: "k", Token: "t", TTL: time.Minute}
		abandoned := make(chan Outcome, 1)
		late, start := redistest.NewLateness(t), time.Now()
		out, err := l.Advance(ctx, m, protocol.Reply{}, func(o Outcome) { abandoned <- o })
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, protocol.Unsure, out.Step.Verdict)
		assert.Less(t, time.Since(start), 200*time.Millisecond+late.Most())
		assert.Equal(t, protocol.Acquired, (<-abandoned).Step.Verdict)
		assert.Equal(t, "t", s.Value("k"))
		_, err = l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "k"})
		assert.NoError(t, err)
	})
}

func TestSilenceEndsTheConnectionAndTheNextCommandGetsAnother(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
		down := make(chan error, 10)
		l := newConn(t, s, func(o *SharedOptions) {
			o.ReplyTimeout = 50 * time.Millisecond
			o.Down = func(_ string, _ redis.Conn, err error) { down <- err }
		})
		require.NoError(t, l.Connect(t.Context(), ""))
		s.Do("CLIENT", "PAUSE", 200)
		reply, err := l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "k"})
		assert.Equal(t, protocol.Silence, reply.Kind)
		assert.ErrorContains(t, err, "no reply within")
		assert.ErrorContains(t, <-down, "no reply within")
		require.Eventually(t, func() bool {
			_, err := l.Do(t.Context(), protocol.Command{Op: protocol.Get, Key: "k"})
			return err == nil
		}, 10*time.Second, time.Millisecond)
	})
}

func TestClosedLine(t *testing.T) {
	s := redistest.Mini(t)
	l := newConn(t, s, nil)
	require.NoError(t, l.Connect(t.Context(), ""))
	l.Close()
	_, err := l.Request(t.Context(), wire.Request{Name: "PING"})
	assert.ErrorIs(t, err, ErrClosed)
}
