package redistest

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// every is how often lateness is measured.
const every = 20 * time.Millisecond

// Lateness is how late timers are on this machine. A bound on what a call may take has it on top: other suites keep
// the machine busy, and then each wake-up of a process takes that much longer.
type Lateness struct {
	mu     sync.Mutex
	asleep time.Time // since when the measuring is
	woke   []waking
}

type waking struct {
	at   time.Time
	late time.Duration
}

// NewLateness measures until the test has ended; beside each sleep also how long something else takes that has to be prompt. It may be used by
// many goroutines.
func NewLateness(t testing.TB, prompt ...func()) *Lateness {
	l, measured := &Lateness{asleep: time.Now()}, make(chan struct{})
	go func() {
		defer close(measured)
		for t.Context().Err() == nil {
			time.Sleep(every)
			for _, do := range prompt {
				do()
			}
			l.mu.Lock()
			l.woke, l.asleep = append(l.woke, waking{time.Now(), time.Since(l.asleep) - every}), time.Now()
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() { <-measured })
	return l
}

// Most is twice the most of the last second and a bit: the timer's own, and that of a process that it waits for.
func (l *Lateness) Most() time.Duration { return l.Since(time.Now().Add(-64 * every)) }

// Since is the same for all the time since a moment.
func (l *Lateness) Since(began time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := max(time.Since(l.asleep)-every, 0)
	for _, w := range slices.Backward(l.woke) {
		if w.at.Before(began) {
			break
		}
		most = max(most, w.late)
	}
	return 2 * most
}
