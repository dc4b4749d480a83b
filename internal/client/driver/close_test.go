package driver

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// A connection that is given up while the contexts of its callers end, as at every loss of a hub's connection: each run is told
// what became of it once, and all of them before both the connection and the callers are through.
func TestCloseBesideCallersThatLeave(t *testing.T) {
	const callers = 8
	for range 500 {
		f := newFake()
		l := over(t, f, nil)
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var left, told atomic.Int32
		for range callers {
			all.Go(func() {
				m := &protocol.ModernAcquire{Key: "k", Token: "token", TTL: time.Minute}
				out, err := l.Advance(ctx, m, protocol.Reply{}, func(o Outcome) {
					assert.NotEqual(t, protocol.Acquired, o.Step.Verdict, "nobody has answered")
					told.Add(1)
				})
				if err != nil && out.Step.Verdict == protocol.Unsure {
					left.Add(1)
				}
			})
		}
		for f.sent() < callers {
			time.Sleep(10 * time.Microsecond) // polling
		}
		go leave()
		l.Close()
		l.Wait()
		all.Wait()
		assert.Equal(t, left.Load(), told.Load())
	}
}
