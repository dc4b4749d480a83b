package legacy_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// A dialect of one's own: PredisLock (PHP), "<seconds + 1>:<pid>", wins when the old value is expired.
func predis() legacy.Dialect {
	return legacy.Dialect{
		Name: "predis", Unit: time.Second, Extra: 1, TakesAny: true, TakesMissing: true, Form: "number:owner",
	}
}

func TestCustomDialect(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		locker := newLocker(t, s.Pool(), legacy.Options{Dialect: predis(), Lease: time.Minute})
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

func TestDialectsAreChecked(t *testing.T) {
	pool := redistest.Mini(t).Pool()
	for want, change := range map[string]func(*legacy.Dialect){
		"needs a Name":             func(d *legacy.Dialect) { d.Name = "" },
		"is a known one":           func(d *legacy.Dialect) { d.Name = "redis-doc" },
		"on every failure":         func(d *legacy.Dialect) { d.Name = "ms-pipe-uuid" },
		"Extra -1":                 func(d *legacy.Dialect) { d.Extra = -1 },
		"Unit 1m0s":                func(d *legacy.Dialect) { d.Unit = time.Minute },
		"Float with Unit 1ms":      func(d *legacy.Dialect) { d.Unit, d.Float = time.Millisecond, true },
		`Form "owner:number"`:      func(d *legacy.Dialect) { d.Form = "owner:number" },
		"Poll -1ns":                func(d *legacy.Dialect) { d.Poll = -1 },
		"Poll 2h":                  func(d *legacy.Dialect) { d.Poll = 2 * time.Hour },
		"known are jedis-ms":       func(d *legacy.Dialect) { *d = legacy.Dialect{Name: "nope"} },
		"share a key with anybody": func(d *legacy.Dialect) { *d = legacy.Dialect{Name: "blind-set"} },
	} {
		d := predis()
		change(&d)
		_, err := legacy.New(pool, legacy.Options{Dialect: d})
		assert.ErrorContains(t, err, want)
		_, err = compat.New(pool, compat.Options{Dialect: d})
		assert.ErrorContains(t, err, want)
	}
}

// TestEveryDialectIsDocumented: the type's comment and the readme have a line for each known dialect.
func TestEveryDialectIsDocumented(t *testing.T) {
	for file, line := range map[string]string{"dialect.go": "//\t%s ", "../README.md": "| `%s` |", "../README.zh-CN.md": "| `%s` |"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, d := range protocol.Dialects() {
			assert.Contains(t, string(text), fmt.Sprintf(line, d.Name), file)
		}
	}
}
