package redisson

import (
	"context"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/lockers"
)

// Made tells a test of each hold that an acquisition makes from now on.
func Made(made lockmigrate.Locker, each func(*lockers.Hold)) {
	l := made.(*locker)
	l.New = func(ctx context.Context, key string) *lockers.Hold {
		h := l.newHold(ctx, key)
		each(h)
		return h
	}
}
