package locktest

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate"
)

// lock is a Lock of a Locker in memory.
type lock struct {
	locker *Locker
	key    string
	fence  int64
	ctx    context.Context
	cancel context.CancelCauseFunc

	// The locker's mutex guards these.
	until time.Time
	ended error // what Renew and Release say
}

func (k *lock) Key() string              { return k.key }
func (k *lock) Token() string            { return strconv.FormatInt(k.fence, 10) }
func (k *lock) Fence() int64             { return k.fence }
func (k *lock) Stage() lockmigrate.Stage { return lockmigrate.StageModern }
func (k *lock) Context() context.Context { return k.ctx }

func (k *lock) Expiry() time.Time {
	k.locker.mu.Lock()
	defer k.locker.mu.Unlock()
	return k.until
}

func (k *lock) Renew(context.Context) error {
	k.locker.mu.Lock()
	defer k.locker.mu.Unlock()
	if k.ended != nil {
		return k.as("renew")
	}
	k.until = time.Now().Add(TTL)
	return nil
}

func (k *lock) Release(context.Context) error {
	k.locker.mu.Lock()
	defer k.locker.mu.Unlock()
	if k.ended != nil {
		return k.as("release")
	}
	s := k.locker.of(k.key)
	if s.released != nil {
		return &lockmigrate.Error{Op: "release", Key: k.key, Kind: kindOf(s.released), Cause: s.released}
	}
	k.ended = &lockmigrate.Error{Op: "release", Key: k.key, Kind: lockmigrate.ErrReleased}
	k.cancel(k.ended)
	s.holder = nil
	k.locker.next(k.key)
	return nil
}

// as is how the lock ended, told to another operation.
func (k *lock) as(op string) error {
	var e *lockmigrate.Error
	errors.As(k.ended, &e)
	told := *e
	told.Op = op
	return &told
}
