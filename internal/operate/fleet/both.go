package fleet

import (
	"context"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/modern"
)

// Both joins package handover on the other server: from the lock that package compat takes on pool to a token there. It returns when it has
// joined.
func Both(ctx context.Context, pool, other lockmigrate.Pool, before compat.Options, after modern.Options, o handover.Options) (take Take, closes func(), err error) {
	old, err := compat.New(pool, before)
	if err != nil {
		return nil, nil, err
	}
	new, err := modern.New(other, after)
	if err != nil {
		_ = old.Close()
		return nil, nil, err
	}
	o.Old, o.New = old, new
	locker, err := handover.New(other, o)
	if err != nil {
		_, _ = old.Close(), new.Close()
		return nil, nil, err
	}
	closes = func() { _, _, _ = locker.Close(), new.Close(), old.Close() }
	if err := locker.Ready(ctx); err != nil {
		closes()
		return nil, nil, err
	}
	return Of(locker.Acquire), closes, nil
}
