package compat_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Who waits for the namespace is told of Close too.
func TestCloseEndsTheWaitForANamespace(t *testing.T) {
	s := redistest.Mini(t)
	pool := poolTo(t, s.Addr)
	s.Mini.Close()
	l, err := compat.New(pool, quick(func(o *compat.Options) { o.Namespace = "orders" }))
	require.NoError(t, err)
	ended := make(chan error, 2)
	go func() {
		_, err := l.Acquire(context.Background(), "lock.order.1")
		ended <- err
	}()
	go func() { ended <- l.Ready(context.Background()) }()
	time.Sleep(200 * time.Millisecond) // the subject
	l.Close()
	closed(t, ended)
	closed(t, ended)
}

// closed expects the error of a closed Locker, soon.
func closed(t testing.TB, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, lifetime.ErrClosed)
		assert.NotErrorIs(t, err, lockmigrate.ErrNotAcquired)
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on after Close")
	}
}
