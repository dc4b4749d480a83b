package redisson

import (
	"context"

	"github.com/lockmigrate/lockmigrate/internal/client/leased"
)

// Made tells a test of each hold that an acquisition makes from now on.
func (l *Locker) Made(each func(*leased.Hold)) {
	l.base.New = func(ctx context.Context, key string) *leased.Hold {
		h := l.newHold(ctx, key)
		each(h)
		return h
	}
}
