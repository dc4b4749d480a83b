package modern

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// A goroutine that waits for a lock costs little memory: a service may have thousands of them.
func TestManyWaitersAreSmall(t *testing.T) {
	const n, most = 1000, 64 << 10 // bytes of stack for each
	l, err := New(redistest.Real(t).Pool(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	const key = "many"
	held, err := l.Acquire(t.Context(), key)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stacks := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.StackInuse
	}
	before := stacks()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			// As a worker does: its stack has been through a whole lock before.
			err := l.Do(ctx, fmt.Sprint("own", i), func(context.Context) error { return nil })
			assert.NoError(t, err)
			_, err = l.Acquire(ctx, key)
			assert.ErrorIs(t, err, context.Canceled)
		})
	}
	redistest.Await(t, "all wait", time.Minute, func() bool { return l.(*locker).Hub.Waiting(key) == n })
	each := (stacks() - before) / n
	t.Logf("%d bytes of stack for each of %d waiters", each, n)
	assert.Less(t, each, uint64(most))
	cancel()
	all.Wait()
	require.NoError(t, held.Release(t.Context()))
}
