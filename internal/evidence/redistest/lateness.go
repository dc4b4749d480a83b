package redistest

import (
	"sync/atomic"
	"testing"
	"time"
)

// every is how often lateness is measured.
const every = 20 * time.Millisecond

// Lateness is how late timers are on this machine at present. A bound on what a call may take has it on top: other suites keep
// the machine busy, and then each wake-up of a process takes that much longer.
type Lateness struct {
	recent [64]atomic.Int64
	asleep atomic.Pointer[time.Time] // since when the next one is
}

// NewLateness measures until the test has ended. It may be used by many goroutines.
func NewLateness(t testing.TB) *Lateness {
	l, ended, measured := &Lateness{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(measured)
		for i := 0; ; i++ {
			start := time.Now()
			l.asleep.Store(&start)
			select {
			case <-ended:
				return
			case <-time.After(every):
			}
			l.recent[i%len(l.recent)].Store(int64(time.Since(start) - every))
		}
	}()
	t.Cleanup(func() { close(ended); <-measured })
	return l
}

// Most is twice the most of the last second and a bit: the timer's own, and that of a process that it waits for.
func (l *Lateness) Most() time.Duration {
	most := int64(0)
	if since := l.asleep.Load(); since != nil {
		most = int64(time.Since(*since) - every)
	}
	for i := range l.recent {
		most = max(most, l.recent[i].Load())
	}
	return time.Duration(2 * max(most, 0))
}
