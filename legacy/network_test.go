package legacy_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/evidence/world"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func TestLostReplies(t *testing.T) {
	const past = "1600000000000"
	for _, c := range []struct {
		name    string
		dialect legacy.Dialect
		before  string // on the key at the start
		faults  map[int]world.Fault
		want    error // nil: acquired
		sent    string
	}{
		{"SETNX arrives, its reply does not, numbers", legacy.Dialect{Name: "jedis-ms"}, "", map[int]world.Fault{1: {LoseReply: true}},
			lockmigrate.ErrUnknownOutcome, "SETNX GET"},
		{"SETNX arrives, its reply does not, own values", legacy.Dialect{Name: "jedis-uuid"}, "", map[int]world.Fault{1: {LoseReply: true}},
			nil, "SETNX GET"},
		{"SETNX never arrives", legacy.Dialect{Name: "jedis-ms"}, "", map[int]world.Fault{1: {LoseCommand: true}}, nil, "SETNX GET SETNX"},
		{"SETNX is lost twice", legacy.Dialect{Name: "jedis-ms"}, "", map[int]world.Fault{1: {LoseCommand: true}, 3: {LoseCommand: true}},
			lockmigrate.ErrNotAcquired, "SETNX GET SETNX GET"},
		{"GETSET arrives, its reply does not", legacy.Dialect{Name: "redispy-float"}, "5.0", map[int]world.Fault{3: {LoseReply: true}},
			lockmigrate.ErrUnknownOutcome, "SETNX GET GETSET GET"},
		{"GETSET never arrives", legacy.Dialect{Name: "jedis-ms"}, past, map[int]world.Fault{3: {LoseCommand: true}}, lockmigrate.ErrNotAcquired, "SETNX GET GETSET GET"},
		{"EXEC arrives, its reply does not", legacy.Dialect{Name: "servicestack"}, past, map[int]world.Fault{6: {LoseReply: true}},
			lockmigrate.ErrUnknownOutcome, "SETNX WATCH GET MULTI SET EXEC GET"},
		{"EXEC is refused, as by Redis 5, which keeps the transaction", legacy.Dialect{Name: "servicestack"}, past, map[int]world.Fault{6: {Refused: "BUSY a script"}},
			nil, "SETNX WATCH GET MULTI SET EXEC UNWATCH UNWATCH SETNX WATCH GET MULTI SET EXEC"},
		{"GET is refused behind WATCH, then silence", legacy.Dialect{Name: "servicestack"}, past, map[int]world.Fault{3: {Refused: "NOPERM no"}, 4: {LoseReply: true}},
			nil, "SETNX WATCH GET UNWATCH SETNX WATCH GET MULTI SET EXEC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				if c.before != "" {
					s.Do("SET", key, c.before)
				}
				route := s.Route("a")
				for n, fault := range c.faults {
					route.Next(n, fault)
				}
				locker := newLocker(t, route.Pool(), legacy.Options{Dialect: c.dialect, Lease: time.Minute, ReplyTimeout: time.Second})
				lock, err := locker.TryAcquire(t.Context(), key)
				if err != nil && c.want == nil { // it was refused, and a second attempt is not
					lock, err = locker.TryAcquire(t.Context(), key)
				}
				assert.Equal(t, c.sent, route.Commands())
				if c.want == nil {
					require.NoError(t, err)
					assert.Equal(t, lock.Token(), s.Value(key))
					return
				}
				require.ErrorIs(t, err, c.want)
				var detail *lockmigrate.Error
				require.ErrorAs(t, err, &detail)
				if errors.Is(err, lockmigrate.ErrUnknownOutcome) {
					rules, err := protocol.DialectNamed(c.dialect.Name)
					require.NoError(t, err)
					at, ok := rules.ExpiresAt(s.Value(key))
					require.True(t, ok)
					assert.WithinDuration(t, at.Time(), detail.Until, time.Microsecond, "says until when the key may stay taken")
				}
			})
		})
	}
}

// A DEL whose reply does not come in time is on its way yet. Nobody may get in before it: it would delete the successor's key.
func TestADELOnItsWayIsNotSentAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault world.Fault
		free  time.Duration // until the next one gets in, at most
		del   string        // the DELs and GETs of the release
	}{
		{"late", world.Fault{LateCommand: 5 * time.Second}, 6 * time.Second, "DEL GET GET"},
		{"late reply", world.Fault{LateReply: 5 * time.Second}, 2 * time.Second, "DEL GET"},
		{"reset", world.Fault{Cut: true}, 2 * time.Second, "DEL GET DEL"},
		{"lost", world.Fault{LoseCommand: true}, time.Minute + time.Second, "DEL GET GET"},
	} {
		t.Run(c.name, func(t *testing.T) {
			redistest.Virtual(t, func(t *testing.T, s *redistest.Server) {
				route := s.Route("holder")
				held, err := newLocker(t, route.Pool(), legacy.Options{Lease: time.Minute, ReplyTimeout: time.Second}).TryAcquire(t.Context(), key)
				require.NoError(t, err)
				next := newLocker(t, s.Pool(), legacy.Options{Lease: time.Minute, Poll: 10 * time.Millisecond})
				got := make(chan error, 1)
				var second lockmigrate.Lock
				began := time.Now()
				before := len(route.Commands())
				route.Next(1, c.fault)
				go func() {
					second, err = next.Acquire(t.Context(), key)
					got <- err
				}()
				_ = held.Release(t.Context())
				require.NoError(t, <-got)
				assert.LessOrEqual(t, time.Since(began), c.free)
				time.Sleep(10 * time.Second)
				assert.Equal(t, second.Token(), s.Value(key), "nothing late has deleted it")
				assert.Contains(t, route.Commands()[before:], c.del)
			})
		})
	}
}
