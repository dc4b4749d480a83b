package lockers

import (
	"context"
	"testing"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate"
)

type wrapped struct{ lockmigrate.Pool }

type dialler struct{ wrapped }

func (*dialler) Dial(context.Context) (redis.Conn, error) { return nil, nil }

func TestPool(t *testing.T) {
	for want, pool := range map[string]lockmigrate.Pool{
		"a Locker needs a pool":       nil,
		"the *redis.Pool is nil":      (*redis.Pool)(nil),
		"the *lockers.dialler is nil": (*dialler)(nil),
		"neither Dial nor Dial":       &redis.Pool{},
		"only hands out connections":  wrapped{&redis.Pool{}},
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
