package compat_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// BenchmarkAcquireRelease is the cost of a bridge lock that nobody else wants.
func BenchmarkAcquireRelease(b *testing.B) {
	for name, fenceTTL := range map[string]time.Duration{"fenced": time.Minute, "plain": 0} {
		b.Run(name, func(b *testing.B) {
			locker, err := compat.New(redistest.Real(b).Pool(), compat.Options{ShortestLease: time.Minute, FenceTTL: fenceTTL})
			require.NoError(b, err)
			defer locker.Close()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				lock, err := locker.Acquire(ctx, "orders")
				require.NoError(b, err)
				require.NoError(b, lock.Release(ctx))
			}
		})
	}
}

// BenchmarkCrowd is 64 goroutines, each with a key of its own.
func BenchmarkCrowd(b *testing.B) {
	locker, err := compat.New(redistest.Real(b).Pool(), compat.Options{ShortestLease: time.Minute})
	require.NoError(b, err)
	defer locker.Close()
	var n atomic.Int64
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := fmt.Sprint("orders:", n.Add(1))
		for pb.Next() {
			lock, err := locker.Acquire(context.Background(), key)
			if err != nil {
				b.Error(err)
				return
			}
			if err := lock.Release(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
