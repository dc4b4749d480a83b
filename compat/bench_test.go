package compat_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
)

// BenchmarkAcquireRelease is the cost of a bridge lock that nobody else wants.
func BenchmarkAcquireRelease(b *testing.B) {
	for name, noFence := range map[string]bool{"fenced": false, "plain": true} {
		b.Run(name, func(b *testing.B) {
			locker, err := compat.New(redistest.Real(b).Pool(), compat.Options{ShortestLease: time.Minute, NoFence: noFence})
			if err != nil {
				b.Fatal(err)
			}
			defer locker.Close()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				lock, err := locker.Acquire(ctx, "orders")
				if err != nil {
					b.Fatal(err)
				}
				if err := lock.Release(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
