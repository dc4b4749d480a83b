package modern_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// A contended acquisition and its release are at most three round trips, however many processes wait and in whichever way the workers
// are spread over them; renewals included.
func TestRoundTripsOfAContendedAcquisition(t *testing.T) {
	for _, shape := range [][2]int{{4, 4}, {1, 16}, {8, 1}, {100, 1}} {
		s := redistest.Real(t)
		monitor := s.Monitor()
		turns := max(10, 640/(shape[0]*shape[1]))
		var all sync.WaitGroup
		for range shape[0] {
			locker := newLocker(t, s.Pool(), modern.Options{})
			for range shape[1] {
				all.Go(func() {
					for range turns {
						assert.NoError(t, locker.Do(t.Context(), key, func(context.Context) error {
							time.Sleep(time.Millisecond)
							return nil
						}))
					}
				})
			}
		}
		all.Wait()
		trips := 0
		pinged := map[string]int{} // by connection: a PING that a release is to follow
		for _, c := range monitor.Commands() {
			switch c.Words[0] {
			case "CLIENT", "SUBSCRIBE": // once for each connection
			case "PING":
				trips += pinged[c.Addr]
				pinged[c.Addr] = 1
			case "EVALSHA", "EVAL":
				// A PING before a release travels in one write with it (TestAnswerLast of internal/client/driver): no round trip of its own.
				pinged[c.Addr] = 0
				trips++
			default:
				trips += 1 + pinged[c.Addr]
				pinged[c.Addr] = 0
			}
		}
		for _, n := range pinged {
			trips += n
		}
		each := float64(trips) / float64(shape[0]*shape[1]*turns)
		t.Logf("%d x %d: %.2f round trips", shape[0], shape[1], each)
		assert.LessOrEqual(t, each, 3.0)
	}
}
