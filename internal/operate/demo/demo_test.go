package demo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fleet"
)

const shortAct = 250 * time.Millisecond

// embeddedPool is the server of `lockmigrate demo`, whose TTLs pass.
func embeddedPool(t *testing.T) (lockmigrate.Pool, *endpoint.Endpoint) {
	t.Helper()
	server, err := StartServer()
	require.NoError(t, err)
	e, err := endpoint.Parse("redis://"+server.Addr(), endpoint.TLSFiles{})
	require.NoError(t, err)
	pool := e.Pool()
	t.Cleanup(func() { _ = pool.Close(); server.Close() })
	return pool, e
}

func TestStory(t *testing.T) {
	pool, e := embeddedPool(t)
	var heard []Event
	result, err := Run(context.Background(), Options{Pool: pool, End: e, Act: shortAct, Event: func(e Event) { heard = append(heard, e) }})
	require.NoError(t, err)
	assert.True(t, result.Complete)
	assert.False(t, result.Broken())
	assert.Zero(t, result.Overlaps)
	assert.Equal(t, heard, result.Timeline)
	assert.Len(t, result.Acts, len(story))
	turns := 0
	for _, a := range result.Acts {
		assert.Positive(t, a.Turns, a.Name)
		turns += a.Turns
	}
	crashed := 0
	for _, m := range result.Members {
		turns -= m.Turns
		assert.Zero(t, m.Errors, "%s: %v", m.Name, m.Err)
		if m.Crashed {
			crashed++
		}
	}
	assert.Zero(t, turns, "the acts' turns are the members' turns")
	assert.Equal(t, 1, crashed)
	assertNothingLeft(t, e)
}

// TestOverlapsAreSeen: a lock that does not exclude, in an act that promises it and in one that does not.
func TestOverlapsAreSeen(t *testing.T) {
	pool, e := embeddedPool(t)
	broken := []act{{name: "broken", title: "a lock that lets everybody in", begin: func(_ context.Context, s *stage) error {
		for _, name := range []string{"a", "b", "c"} {
			s.join(name, func(context.Context, string) (fleet.Held, error) { return open{}, nil })
		}
		return nil
	}}}
	result, err := run(context.Background(), Options{Pool: pool, Act: shortAct}, broken)
	require.NoError(t, err)
	assert.Positive(t, result.Overlaps)
	assert.Equal(t, result.Overlaps, result.Acts[0].Overlaps)
	assert.True(t, result.Broken())
	assert.True(t, result.Timeline[0].Alarm)
	assertNothingLeft(t, e)
}

// open is a lock that is always held, by everybody.
type open struct{}

func (open) Context() context.Context      { return context.Background() }
func (open) Release(context.Context) error { return nil }

func TestInterruptedStoryLeavesNothing(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) }) // after the server and the pool are closed
	pool, e := embeddedPool(t)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(shortAct, cancel)
	began := time.Now()
	result, err := Run(ctx, Options{Pool: pool, Act: time.Hour})
	assert.ErrorIs(t, err, context.Canceled)
	assert.Less(t, time.Since(began), time.Second)
	require.NotNil(t, result)
	assert.False(t, result.Complete)
	assertNothingLeft(t, e)
}

func TestStoryOnAServerThatRefuses(t *testing.T) {
	s := redistest.Mini(t)
	s.Mini.SetError("READONLY You can't write against a read only replica.")
	_, err := Run(context.Background(), Options{Pool: s.Pool(), Act: shortAct})
	assert.EqualError(t, err, "the server is a read-only replica")
}

// TestStoryThatNobodyCanPlay: what keeps the members out is the error.
func TestStoryThatNobodyCanPlay(t *testing.T) {
	pool, _ := embeddedPool(t)
	down := errors.New("the lock is out of order")
	_, err := run(context.Background(), Options{Pool: pool, Act: shortAct}, []act{{name: "stuck", begin: func(_ context.Context, s *stage) error {
		s.join("a", func(context.Context, string) (fleet.Held, error) { return nil, down })
		return nil
	}}})
	assert.Equal(t, down, err)
}

func assertNothingLeft(t *testing.T, e *endpoint.Endpoint) {
	t.Helper()
	conn, err := e.Dial(context.Background())
	require.NoError(t, err)
	defer conn.Close()
	keys, err := conn.Do("KEYS", "*")
	require.NoError(t, err)
	assert.Empty(t, keys)
}
