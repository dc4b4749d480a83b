package modern_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "orders"

func newLocker(t testing.TB, pool lockmigrate.Pool, opts modern.Options) lockmigrate.Locker {
	t.Helper()
	locker, err := modern.New(pool, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// kind is a way to lock that a behaviour must hold for: package modern's or modern/redisson's, and what the pool can do.
type kind struct {
	modern.Options
	Redisson  bool
	Untracked bool // without the right to client tracking
}

// open returns a Locker of a kind over a server.
func open(t testing.TB, s *redistest.Server, k kind) lockmigrate.Locker {
	t.Helper()
	if k.Untracked {
		return openOver(t, s.Untracked(), k)
	}
	return openOver(t, s.Pool(), k)
}

func openOver(t testing.TB, pool lockmigrate.Pool, k kind) lockmigrate.Locker {
	t.Helper()
	if !k.Redisson {
		return newLocker(t, pool, k.Options)
	}
	l, err := redisson.New(pool, k.Options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// 10,000 held locks of one Locker are renewed over several TTLs by one goroutine over one connection.
func TestStressTenThousandHeldLocks(t *testing.T) {
	s := redistest.Real(t)
	const n = 10_000
	// What counts is how often a lock is renewed, not how long that takes: a TTL has to be several times what a round of
	// renewals costs, which the race detector and a busy machine make from a tenth of a second to several. An acquisition
	// by itself costs more than a renewal, which travels with a thousand others.
	round := n * acquiring(t, s, 500)
	ttl := min(max(6*round, 4*time.Second), time.Minute).Truncate(4 * time.Millisecond)
	t.Logf("10,000 acquisitions take %v: TTL %v", round.Round(time.Millisecond), ttl)
	var lost, renewed atomic.Int64
	locker := newLocker(t, s.Pool(), modern.Options{
		TTL: ttl, ReplyTimeout: ttl / 4, // no shorter patience of the renewals': they share the line with everything else
		Observer: func(e lockmigrate.Event) {
			switch e.Kind {
			case lockmigrate.EventLost:
				lost.Add(1)
			case lockmigrate.EventRenewed:
				renewed.Add(1)
			}
		},
	})
	locks := make([]lockmigrate.Lock, n)
	var all sync.WaitGroup
	for part := range 20 {
		all.Go(func() {
			for i := part; i < n; i += 20 {
				var err error
				if locks[i], err = locker.TryAcquire(t.Context(), key+strconv.Itoa(i)); err != nil {
					assert.NoError(t, err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	goroutines, clients := runtime.NumGoroutine(), clientCount(s)
	for range 61 { // more than three TTLs
		time.Sleep(ttl / 20) // the subject is time passing
		assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines+8, "whatever the runtime adds, and a batch under way; not one for each lock")
		assert.LessOrEqual(t, clientCount(s), clients+1)
	}
	assert.Zero(t, lost.Load())
	assert.GreaterOrEqual(t, renewed.Load(), int64(7*n))
	assert.EqualValues(t, n, s.Do("DBSIZE"))
	for _, lock := range locks {
		require.NoError(t, lock.Release(t.Context()))
	}
	assert.EqualValues(t, 0, s.Do("DBSIZE"))
}

// acquiring returns how long one of n acquisitions, one after the other, takes here and now.
func acquiring(t *testing.T, s *redistest.Server, n int) time.Duration {
	t.Helper()
	locker := newLocker(t, s.Pool(), modern.Options{RenewEvery: -1})
	locks := make([]lockmigrate.Lock, n)
	_, err := locker.TryAcquire(t.Context(), "first") // connects
	require.NoError(t, err)
	start := time.Now()
	for i := range locks {
		locks[i], err = locker.TryAcquire(t.Context(), "rate"+strconv.Itoa(i))
		require.NoError(t, err)
	}
	took := time.Since(start)
	locker.Close()
	s.Do("FLUSHALL")
	return took / time.Duration(n)
}

// Renewals go over the same connection as everything else, and come through while so many goroutines use
// it that most of them wait for a place in it.
func TestRenewalsAreNotCrowdedOut(t *testing.T) {
	s := redistest.Real(t)
	before := clientCount(s)
	renewed := make(chan struct{}, 1000)
	locker := newLocker(t, s.Pool(), modern.Options{
		RenewEvery: 100 * time.Millisecond,
		Observer: func(e lockmigrate.Event) {
			if e.Kind == lockmigrate.EventRenewed {
				select {
				case renewed <- struct{}{}:
				default:
				}
			}
		},
	})
	lock, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	crowd, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 3000 { // the line has 1024 places
		all.Go(func() {
			for crowd.Err() == nil {
				if _, err := locker.TryAcquire(crowd, key); !assert.ErrorIs(t, err, lockmigrate.ErrNotAcquired) {
					return
				}
			}
		})
	}
	for range 10 {
		select {
		case <-renewed:
		case <-time.After(time.Minute):
			t.Error("no renewal came through")
		}
	}
	assert.Equal(t, before+1, clientCount(s), "connections")
	end()
	all.Wait()
	require.NoError(t, lock.Release(t.Context()))
}

func clientCount(s *redistest.Server) int {
	return strings.Count(string(s.Do("CLIENT", "LIST").([]byte)), "\n")
}

// TestAcquireReleaseAllocations holds what docs/benchmarks.md says: an uncontended lock costs no more
// than twelve allocations, five of them for the commands alone.
func TestAcquireReleaseAllocations(t *testing.T) {
	locker := newLocker(t, redistest.Real(t).Pool(), modern.Options{})
	pair := func() {
		lock, err := locker.TryAcquire(t.Context(), key)
		if err == nil {
			err = lock.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pair()
	most := 12.0
	if build, ok := debug.ReadBuildInfo(); ok && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most = 16 // the race detector has pools forget at random
	}
	if n := testing.AllocsPerRun(2000, pair); n > most {
		t.Errorf("%v allocations, at most %v are agreed", n, most)
	}
}

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
