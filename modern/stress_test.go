package modern_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

func TestMain(m *testing.M) {
	if os.Getenv("MODERN_STRESS") != "" {
		stressMember()
		return
	}
	goleak.VerifyTestMain(m)
}

// shared is memory that the processes of one test share: they keep their score in it faster than in any
// server, so that the score does not slow down what it counts.
type shared struct {
	inside   atomic.Int64 // how many hold the lock
	turns    atomic.Int64
	overlaps atomic.Int64
	lost     atomic.Int64      // acquisitions and releases that came to nothing, and holders who were told so
	early    atomic.Int64      // of these, before the lock's deadline
	came     [256]atomic.Int64 // when the overlaps began, by the host's clock
	told     [256]atomic.Bool  // those in which a holder was inside after its deadline, and was told
}

// enter counts a holder in, and returns when.
func (s *shared) enter() time.Time {
	now := time.Now()
	if s.inside.Add(1) != 1 {
		if n := s.overlaps.Add(1) - 1; n < int64(len(s.came)) {
			s.came[n].Store(now.UnixNano())
		}
	}
	return now
}

// leave counts it out, and returns when.
func (s *shared) leave() time.Time {
	s.inside.Add(-1)
	return time.Now()
}

// lose notes that a holder was told of a loss. Overlaps that began while it was inside and after its lock's deadline are told: its
// process did not run in time, and nobody could take it out.
func (s *shared) lose(entered, left, until time.Time) {
	s.lost.Add(1)
	if time.Now().Before(until) {
		s.early.Add(1)
	}
	for n := range min(s.overlaps.Load(), int64(len(s.came))) {
		if came := time.Unix(0, s.came[n].Load()); !came.Before(entered.Round(0)) && !came.After(left.Round(0)) && came.After(until) {
			s.told[n].Store(true)
		}
	}
}

// untold is how many overlaps are violations.
func (s *shared) untold() int64 {
	n := s.overlaps.Load()
	for i := range min(n, int64(len(s.told))) {
		if s.told[i].Load() {
			n--
		}
	}
	return n
}

func shareMemory(path string) (*shared, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*shared)(unsafe.Pointer(&m[0])), nil
}

// stress is what one process of a stress test does.
type stress struct {
	Addr    string
	Memory  string
	Workers int
	Turns   int64 // of all processes together
	Hold    time.Duration
	Options stressOptions
}

type stressOptions struct {
	Unfair        bool
	FenceTTL, TTL time.Duration
}

type stressReport struct {
	Errors     []string
	ByWorker   []int
	Goroutines int
	Leak       string
	LongestMS  int64
}

// stressMember is the main function of such a process.
func stressMember() {
	var job stress
	if err := json.Unmarshal([]byte(os.Getenv("MODERN_STRESS")), &job); err != nil {
		panic(err)
	}
	score, err := shareMemory(job.Memory)
	if err != nil {
		panic(err)
	}
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", job.Addr) }}
	locker, err := modern.New(pool, modern.Options{
		TTL: job.Options.TTL, Unfair: job.Options.Unfair, FenceTTL: job.Options.FenceTTL, Poll: 20 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	report := stressReport{ByWorker: make([]int, job.Workers)}
	var mu sync.Mutex
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if len(report.Errors) < 10 {
			report.Errors = append(report.Errors, err.Error())
		}
	}
	var longest atomic.Int64
	var all sync.WaitGroup
	for w := range job.Workers {
		all.Go(func() {
			for score.turns.Load() < job.Turns {
				start := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				lock, err := locker.Acquire(ctx, key)
				cancel()
				if errors.Is(err, lockmigrate.ErrLost) { // the reply came after the TTL
					score.lost.Add(1)
					continue
				}
				if err != nil {
					fail(err)
					return
				}
				if took := time.Since(start).Milliseconds(); took > longest.Load() {
					longest.Store(took)
				}
				entered := score.enter()
				if job.Hold > 0 {
					time.Sleep(job.Hold)
				}
				left := score.leave()
				score.turns.Add(1)
				report.ByWorker[w]++
				ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
				err = lock.Release(ctx)
				cancel()
				switch {
				case errors.Is(err, lockmigrate.ErrLost):
					score.lose(entered, left, lock.Expiry())
				case err != nil:
					fail(err)
					return
				}
			}
		})
	}
	all.Wait()
	report.LongestMS = longest.Load()
	locker.Close()
	_ = pool.Close()
	report.Goroutines = runtime.NumGoroutine()
	if err := goleak.Find(); err != nil {
		report.Leak = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(report)
}

// run starts n processes with a job, disturbs them with trouble until they are done, and collects.
func (job stress) run(t *testing.T, s *redistest.Server, n int, trouble func(stop <-chan struct{})) (*shared, []stressReport) {
	t.Helper()
	job.Addr, job.Memory = s.Addr, filepath.Join(t.TempDir(), "score")
	score, err := shareMemory(job.Memory)
	require.NoError(t, err)
	text, err := json.Marshal(job)
	require.NoError(t, err)
	reports := make([]stressReport, n)
	var all sync.WaitGroup
	start := time.Now()
	for i := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "MODERN_STRESS="+string(text))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		all.Go(func() {
			out, err := cmd.Output()
			if !assert.NoError(t, err, "member %d: %s", i, out) {
				return
			}
			assert.NoError(t, json.Unmarshal(out, &reports[i]), "%s", out)
		})
	}
	stop := make(chan struct{})
	var troubled sync.WaitGroup
	if trouble != nil {
		troubled.Go(func() { trouble(stop) })
	}
	all.Wait()
	close(stop)
	troubled.Wait()
	took := time.Since(start)
	least, most := 1<<30, 0
	longest := int64(0)
	for i, r := range reports {
		assert.Empty(t, r.Errors, "member %d", i)
		assert.Empty(t, r.Leak, "member %d: goroutines at the end", i)
		longest = max(longest, r.LongestMS)
		for _, turns := range r.ByWorker {
			least, most = min(least, turns), max(most, turns)
		}
	}
	t.Logf("%d turns in %v (%.0f/s), %d to %d each, longest wait %d ms, %d lost, %d overlaps, %d of them not told",
		score.turns.Load(), took.Round(time.Millisecond), float64(score.turns.Load())/took.Seconds(), least, most, longest, score.lost.Load(), score.overlaps.Load(), score.untold())
	assert.GreaterOrEqual(t, score.turns.Load(), job.Turns)
	// Places in line of processes that were killed are cleared away by the next release.
	pool := s.Pool()
	locker, err := modern.New(pool, modern.Options{})
	require.NoError(t, err)
	assert.NoError(t, locker.Do(t.Context(), key, func(context.Context) error { return nil }))
	locker.Close()
	_ = pool.Close()
	assert.EqualValues(t, 0, s.Do("EXISTS", key, "{"+key+"}:queue"))
	require.Eventually(t, func() bool { return strings.Count(string(s.Do("CLIENT", "LIST").([]byte)), "\n") == 1 }, 10*time.Second, 10*time.Millisecond,
		"connections at the end")
	return score, reports
}

// disturb does one of the things at random, again and again.
func disturb(s *redistest.Server, every time.Duration, things ...func()) func(stop <-chan struct{}) {
	return func(stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(every/2 + rand.N(every)):
			}
			things[rand.IntN(len(things))]()
		}
	}
}

// handoffs returns how many turns a stress test takes: all of them where a real server is asked for,
// fewer under the race detector in short runs.
func handoffs(n int64) int64 {
	if testing.Short() {
		return n / 10
	}
	return n
}

// 50,000 hand-overs among four processes, while connections are killed, scripts are forgotten and the
// server pauses: nobody hangs, nobody overlaps, nothing is left.
func TestStressHandoffsUnderTrouble(t *testing.T) {
	s := redistest.Real(t)
	score, _ := stress{Workers: 8, Turns: handoffs(50_000)}.run(t, s, 4, disturb(s, 150*time.Millisecond,
		func() { s.Do("CLIENT", "KILL", "TYPE", "pubsub") },
		func() { s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") },
		func() { s.Do("SCRIPT", "FLUSH") },
		func() { s.Do("CLIENT", "PAUSE", 30) },
	))
	assert.Zero(t, score.overlaps.Load(), redistest.Violated)
	assert.Zero(t, score.lost.Load())
}

// The same with FLUSHALL, which takes every lock away from its holder: exclusion is not to be had then,
// but nobody hangs.
func TestStressFlushAll(t *testing.T) {
	s := redistest.Real(t)
	score, _ := stress{Workers: 8, Turns: handoffs(10_000), Hold: 100 * time.Microsecond, Options: stressOptions{FenceTTL: time.Minute}}.run(t, s, 4, disturb(s, 60*time.Millisecond,
		func() { s.Do("FLUSHALL") },
		func() { s.Do("FLUSHALL"); s.Do("CLIENT", "KILL", "TYPE", "pubsub") },
	))
	assert.Positive(t, score.lost.Load(), "the test reached what it is about")
}

// Holders that crash: a process is killed while it holds, waits, or is just being handed the key.
func TestStressKilledProcesses(t *testing.T) {
	s := redistest.Real(t)
	job := stress{Addr: s.Addr, Memory: filepath.Join(t.TempDir(), "victims"), Workers: 4, Turns: 1 << 40, Options: stressOptions{TTL: 300 * time.Millisecond}}
	text, err := json.Marshal(job)
	require.NoError(t, err)
	_, err = shareMemory(job.Memory)
	require.NoError(t, err)
	victims := func(stop <-chan struct{}) {
		for {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "MODERN_STRESS="+string(text))
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if !assert.NoError(t, cmd.Start()) {
				return
			}
			select {
			case <-stop:
			case <-time.After(200*time.Millisecond + rand.N(200*time.Millisecond)):
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			select {
			case <-stop:
				return
			default:
			}
		}
	}
	survivors := stress{Workers: 4, Turns: handoffs(5_000), Hold: 100 * time.Microsecond, Options: stressOptions{TTL: 300 * time.Millisecond}}
	score, _ := survivors.run(t, s, 3, victims)
	assert.Zero(t, score.untold(), redistest.Violated)
	assert.Zero(t, score.early.Load(), "a lock was lost before its deadline")
}

// Fairness across processes: with waiters in line everywhere, nobody takes many more turns than another.
func TestStressFairness(t *testing.T) {
	s := redistest.Real(t)
	_, reports := stress{Workers: 4, Turns: 2_000, Hold: time.Millisecond}.run(t, s, 4, nil)
	least, most := 1<<30, 0
	for _, r := range reports {
		for _, turns := range r.ByWorker {
			least, most = min(least, turns), max(most, turns)
		}
	}
	assert.LessOrEqual(t, float64(most), 1.3*float64(least), "most and fewest turns")
}
