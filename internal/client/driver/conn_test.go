package driver

import (
	"testing"
	"time"

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

func TestClosedLine(t *testing.T) {
	s := redistest.Mini(t)
	l := newConn(t, s, nil)
	require.NoError(t, l.Connect(t.Context(), ""))
	l.Close()
	_, err := l.Request(t.Context(), wire.Request{Name: "PING"})
	assert.ErrorIs(t, err, ErrClosed)
}
