package legacy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// A dialect of one's own: PredisLock (PHP), "<seconds + 1>:<pid>", wins when the old value is expired.
func predis() legacy.Custom {
	return legacy.Custom{
		Name: "predis", Unit: time.Second, Extra: 1, TakesAny: true, TakesMissing: true, Form: "number:owner",
	}
}

func TestCustomDialect(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		d, err := predis().Dialect()
		require.NoError(t, err)
		locker := newLocker(t, s.Pool(), legacy.Options{Dialect: d, Lease: time.Minute})
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		assert.Regexp(t, `^\d{10}:[0-9a-f-]{36}$`, s.Value(key))
		_, err = locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
		require.NoError(t, lock.Release(t.Context()))

		s.Do("SET", key, "5:4711")
		_, err = locker.TryAcquire(t.Context(), key)
		assert.NoError(t, err, "takes an expired one over")
		s.Do("SET", key, "no number")
		_, err = locker.TryAcquire(t.Context(), key)
		assert.ErrorIs(t, err, lockmigrate.ErrForeignFormat)
	})
}

func TestCustomDialectIsChecked(t *testing.T) {
	for want, change := range map[string]func(*legacy.Custom){
		"Name":                func(c *legacy.Custom) { c.Name = "" },
		"Extra -1":            func(c *legacy.Custom) { c.Extra = -1 },
		"Unit 1m0s":           func(c *legacy.Custom) { c.Unit = time.Minute },
		"Float with Unit 1ms": func(c *legacy.Custom) { c.Unit, c.Float = time.Millisecond, true },
		`Form "owner:number"`: func(c *legacy.Custom) { c.Form = "owner:number" },
		"Poll -1ns":           func(c *legacy.Custom) { c.Poll = -1 },
	} {
		c := predis()
		change(&c)
		_, err := c.Dialect()
		assert.ErrorContains(t, err, want)
	}
}

func TestParseDialect(t *testing.T) {
	d, err := legacy.ParseDialect("redispy-float")
	require.NoError(t, err)
	assert.Equal(t, legacy.RedisPyFloat, d)
	_, err = legacy.ParseDialect("nope")
	assert.ErrorContains(t, err, "known are jedis-ms")
	at, ok := legacy.JedisMS.Expires("1795262400123")
	assert.True(t, ok)
	assert.Equal(t, time.UnixMilli(1795262400123).UTC(), at)
}
