package lockers

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate"
)

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		value    time.Duration
		duration string // the refusal of each check; empty for none
		period   string
	}{
		{0, "", ""},
		{time.Nanosecond, "", "X 1ns: at least 1ms"},
		{time.Millisecond, "", ""},
		{Longest, "", ""},
		{Longest + 1, "X 87600h0m0.000000001s: at most 87600h0m0s, ten years", "X 87600h0m0.000000001s: at most 87600h0m0s, ten years"},
		{math.MaxInt64, "ten years", "ten years"},
		{-1, "X -1ns: must not be negative", "X -1ns: must not be negative"},
	} {
		for i, check := range []func(...Named) error{Durations, Periods} {
			err, want := check(Named{"X", c.value}), []string{c.duration, c.period}[i]
			if want == "" {
				assert.NoError(t, err, "%v", c.value)
			} else {
				assert.ErrorContains(t, err, want)
			}
		}
	}
}

type dialler struct{ _ int }

func (*dialler) GetContext(context.Context) (redis.Conn, error) { return nil, nil }

func TestPool(t *testing.T) {
	for want, pool := range map[string]lockmigrate.Pool{
		"a Locker needs a pool":       nil,
		"the *redis.Pool is nil":      (*redis.Pool)(nil),
		"the *lockers.dialler is nil": (*dialler)(nil),
		"neither Dial nor Dial":       &redis.Pool{},
	} {
		assert.ErrorContains(t, CheckPool(pool), want)
	}
	assert.NoError(t, CheckPool(&dialler{}))
	assert.NoError(t, CheckPool(&redis.Pool{Dial: func() (redis.Conn, error) { return nil, nil }}))
}

func TestSame(t *testing.T) {
	a, b := &dialler{}, &dialler{}
	assert.True(t, SamePool(a, a))
	assert.False(t, SamePool(a, b))
	assert.False(t, SamePool(a, &redis.Pool{}))
}
