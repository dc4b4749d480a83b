package bench

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// The ten faults that modern/faults_test.go and suite lifecycle look for in package modern, tried on the peers and on
// modern in the same way, on a real server. What came out is docs/faults.md:
//
//	cd internal/evidence/bench && LOCKMIGRATE_SUITES=redis go test -run TestPeersFaults -update

var update = flag.Bool("update", false, "write its section of docs/faults.md")

// peer opens a library on a server, with locks of the given TTL.
type peer struct {
	name string
	open func(t *testing.T, addr string, ttl time.Duration) locks
}

// locks is what the faults need of a library.
type locks struct {
	try     func(ctx context.Context, key string) (held, error) // one attempt
	acquire func(ctx context.Context, key string) (held, error) // waits
}

// held is a library's lock. A nil function is something that the library has not.
type held struct {
	release func(ctx context.Context) error
	extend  func(ctx context.Context) error
	lost    <-chan struct{} // told of a loss
}

var peers = []peer{
	{"modern", func(t *testing.T, addr string, ttl time.Duration) locks {
		pool := poolFor(addr)
		locker, err := modern.New(pool, modern.Options{TTL: ttl, MaxHold: 4 * ttl})
		check(t, err)
		t.Cleanup(func() { locker.Close(); _ = pool.Close() })
		return locksOf(locker.TryAcquire, locker.Acquire, func(lock lockmigrate.Lock) held { return held{lock.Release, lock.Renew, lock.Context().Done()} })
	}},
	{"redsync (redigo)", func(t *testing.T, addr string, ttl time.Duration) locks {
		pool := poolFor(addr)
		t.Cleanup(func() { _ = pool.Close() })
		tries := func(n int) func(context.Context, string) (redsyncLock, error) {
			return redsyncOver(pool, redsync.WithExpiry(ttl), redsync.WithTries(n))
		}
		return locksOf(tries(1), tries(1<<30), func(lock redsyncLock) held { return held{lock.Release, lock.Extend, nil} })
	}},
	{"redislock", func(t *testing.T, addr string, ttl time.Duration) locks {
		rdb := goredis.NewClient(&goredis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		return locksOf(redislockOver(rdb, ttl, false), redislockOver(rdb, ttl, true), func(lock *redislock.Lock) held {
			return held{lock.Release, func(ctx context.Context) error { return lock.Refresh(ctx, ttl, nil) }, nil}
		})
	}},
	{"rueidislock", func(t *testing.T, addr string, ttl time.Duration) locks {
		locker, err := rueidislockOver(addr, ttl, true)
		check(t, err)
		t.Cleanup(locker.Close)
		return locksOf(detached(locker.TryWithContext), detached(locker.WithContext), func(lock rueidisLock) held { return held{lock.Release, nil, lock.inside.Done()} })
	}},
}

func locksOf[L any](try, acquire func(context.Context, string) (L, error), hold func(L) held) locks {
	wrap := func(take func(context.Context, string) (L, error)) func(context.Context, string) (held, error) {
		return func(ctx context.Context, key string) (held, error) {
			lock, err := take(ctx, key)
			if err != nil {
				return held{}, err
			}
			return hold(lock), nil
		}
	}
	return locks{wrap(try), wrap(acquire)}
}

// detached has the context end the wait alone: that which rueidislock is given ends the lock as well.
func detached(with func(context.Context, string) (context.Context, context.CancelFunc, error)) func(ctx context.Context, key string) (rueidisLock, error) {
	return func(ctx context.Context, key string) (rueidisLock, error) {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(ctx, cancel)
		inside, release, err := with(own, key)
		stop()
		if err != nil {
			cancel()
			return rueidisLock{}, err
		}
		return rueidisLock{inside, func() { release(); cancel() }}, nil
	}
}

// outcome is what a library did: whether it passed, and what was seen.
type outcome struct {
	passed bool
	seen   string
}

func said(passed bool, format string, args ...any) outcome {
	return outcome{passed, fmt.Sprintf(format, args...)}
}

const faultKey = "orders"

// keyOf is the key that a library puts on the server for a lock: the one that exists.
func keyOf(t *testing.T, s *redistest.Server) string {
	t.Helper()
	keys, err := redis.Strings(s.Do("KEYS", "*"+faultKey+"*"), nil)
	if err != nil || len(keys) == 0 {
		return ""
	}
	slices.SortFunc(keys, func(a, b string) int { return len(a) - len(b) })
	return keys[0]
}

// busy is a fault that fills the processors: its peers are tried one after the other.
const busy = "7. 16 goroutines want one lock for 4 s"

var peerFaults = []struct {
	what  string
	probe func(t *testing.T, p peer) outcome
}{
	{"1. the server's clock is 10 s ahead", func(t *testing.T, p peer) outcome {
		s := redistest.NewClocked(t)
		s.Step(10 * time.Second)
		a, b := p.open(t, s.Addr, 5*time.Second), p.open(t, s.Addr, 5*time.Second)
		first, err := a.try(t.Context(), faultKey)
		if err != nil {
			return said(false, "the first gets no lock at all: %s", brief(err))
		}
		select {
		case <-first.lost:
			return said(false, "the lock is lost at once")
		default:
		}
		if _, err := b.try(t.Context(), faultKey); err == nil {
			return said(false, "a second one gets in while the first holds")
		}
		return said(true, "the second is kept out")
	}},
	{"2. try for 200 ms, the server is paused for 3 s", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, 10*time.Second)
		warm := take(t, p, l, "another")
		check(t, warm.release(t.Context()))
		s.Do("CLIENT", "PAUSE", 3000)
		ctx := redistest.Bounded(t, 200*time.Millisecond)
		began := time.Now()
		_, err := l.try(ctx, faultKey)
		took := time.Since(began)
		return said(took < 1500*time.Millisecond && err != nil, "back after %.1f s, %s", took.Seconds(), brief(err))
	}},
	{"3. ten tries of a lock that is held", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		holder, l := p.open(t, s.Addr, 30*time.Second), p.open(t, s.Addr, 30*time.Second)
		take(t, p, holder, faultKey)
		if _, err := l.try(t.Context(), faultKey); err == nil { // connects
			t.Fatal("not exclusive")
		}
		monitor := s.Monitor()
		monitor.Commands()
		for range 10 {
			_, _ = l.try(t.Context(), faultKey)
		}
		n := 0
		for _, c := range monitor.Commands() {
			if c.Words[0] != "PING" && c.Words[0] != "ECHO" {
				n++
			}
		}
		return said(n <= 10, "%d commands", n)
	}},
	{"4. the reply to an acquisition never comes", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		link := redistest.NewLink(t, s.Addr)
		l := p.open(t, link.Addr, 20*time.Second)
		warm := take(t, p, l, "another")
		check(t, warm.release(t.Context()))
		link.HalfOpen()
		ctx := redistest.Bounded(t, 500*time.Millisecond)
		done := make(chan error, 1)
		go func() { _, err := l.try(ctx, faultKey); done <- err }()
		redistest.Await(t, "the command", func() bool { return keyOf(t, s) != "" })
		returned := true
		var err error
		select {
		case err = <-done:
		case <-time.After(8 * time.Second):
			returned = false
		}
		link.Cut()
		link.Heal()
		if !returned {
			return said(false, "it waits for the reply for ever, whatever its context says")
		}
		if err == nil {
			return said(true, "settled: it holds the lock")
		}
		for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if keyOf(t, s) == "" {
				return said(true, "given up and cleaned up: %s", brief(err))
			}
		}
		left, _ := redis.Int64(s.Do("PTTL", keyOf(t, s)), nil)
		return said(false, "%s; the key stays for the rest of its TTL (%d of 20 s left)", brief(err), left/1000)
	}},
	{"5. the server falls silent under a holder", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		const ttl = time.Second
		l := p.open(t, s.Addr, ttl)
		h := take(t, p, l, faultKey)
		s.Signal(syscall.SIGSTOP)
		defer s.Signal(syscall.SIGCONT)
		if h.lost == nil {
			return said(false, "nothing would tell the holder")
		}
		began := time.Now()
		select {
		case <-h.lost:
			took := time.Since(began)
			return said(took < 2*ttl, "the holder is told after %.1f s of a TTL of 1 s", took.Seconds())
		case <-time.After(10 * ttl):
			return said(false, "the holder is not told within ten TTLs")
		}
	}},
	{"6. an extension after the lock was lost", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, 20*time.Second)
		h := take(t, p, l, faultKey)
		if h.extend == nil {
			return said(true, "it has none")
		}
		s.Do("DEL", keyOf(t, s))
		err := h.extend(t.Context())
		free := keyOf(t, s) == ""
		return said(free && err != nil && !strings.Contains(err.Error(), "taken"), "%s", brief(err))
	}},
	{busy, func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, 10*time.Second)
		ctx := redistest.Bounded(t, 4*time.Second)
		var turns [16]atomic.Int64
		var all sync.WaitGroup
		for i := range turns {
			all.Go(func() {
				for ctx.Err() == nil {
					h, err := l.acquire(ctx, faultKey)
					if err != nil {
						return
					}
					turns[i].Add(1)
					time.Sleep(time.Millisecond) // the work
					_ = h.release(context.WithoutCancel(ctx))
				}
			})
		}
		all.Wait()
		least, most := turns[0].Load(), turns[0].Load()
		for i := range turns {
			least, most = min(least, turns[i].Load()), max(most, turns[i].Load())
		}
		return said(float64(most) <= 1.5*float64(least), "%d to %d turns each", least, most)
	}},
	{"8. every waiter's connection is killed, then the lock is freed", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, 10*time.Second)
		h, err := l.acquire(t.Context(), faultKey)
		check(t, err)
		key := keyOf(t, s)
		check(t, h.release(t.Context()))
		redistest.Await(t, "a free key", func() bool { return keyOf(t, s) == "" })
		s.Do("SET", key, "another's", "PX", 4000)
		ctx := redistest.Bounded(t, 12*time.Second)
		done := make(chan error, 1)
		began := time.Now()
		go func() { _, err := l.acquire(ctx, faultKey); done <- err }()
		time.Sleep(500 * time.Millisecond) // it waits
		conn := s.Conn()
		check(t, conn.Send("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
		check(t, conn.Send("CLIENT", "KILL", "TYPE", "pubsub"))
		check(t, conn.Send("DEL", key))
		check(t, conn.Flush())
		err = <-done
		took := time.Since(began)
		return said(err == nil && took < 6*time.Second, "%s after %.1f s", brief(err), took.Seconds())
	}},
	{"9. a worker that hangs", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, time.Second)
		take(t, p, l, faultKey)
		began := time.Now()
		for time.Since(began) < 8*time.Second {
			if keyOf(t, s) == "" {
				return said(true, "its key is free after %.0f s", time.Since(began).Seconds())
			}
			time.Sleep(20 * time.Millisecond)
		}
		return said(false, "renewed for ever, and no option ends it")
	}},
	{"10. a release after another has taken over", func(t *testing.T, p peer) outcome {
		s := redistest.Real(t)
		l := p.open(t, s.Addr, 20*time.Second)
		h := take(t, p, l, faultKey)
		key := keyOf(t, s)
		s.Do("SET", key, "another's", "PX", 20000)
		err := h.release(t.Context())
		return said(s.Value(key) == "another's", "%s", brief(err))
	}},
}

// take is a try that succeeds: nobody has the key. rueidislock gives the server 20 ms to answer, which a busy machine may miss; it alone tries again.
func take(t *testing.T, p peer, l locks, key string) held {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		h, err := l.try(t.Context(), key)
		if err == nil {
			return h
		}
		if p.name != "rueidislock" || !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// brief is an error in a cell of a table.
func brief(err error) string {
	if err == nil {
		return "no error"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "deadline exceeded"
	}
	text := address.ReplaceAllString(err.Error(), "address")
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "/")), " ")
	if len(text) > 70 {
		text = text[:67] + "..."
	}
	return "\"" + text + "\""
}

// TestPeersFaults: package modern has none of the ten faults, and each of the faults that a Go library can have,
// but for the last, is had by one of the peers.
func TestPeersFaults(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	seen := map[string]map[string]outcome{}
	for _, f := range peerFaults {
		seen[f.what] = map[string]outcome{}
		var mu sync.Mutex
		t.Run(f.what, func(t *testing.T) {
			for _, p := range peers {
				t.Run(p.name, func(t *testing.T) {
					if f.what != busy {
						t.Parallel()
					}
					o := f.probe(t, p)
					t.Log(o.passed, o.seen)
					mu.Lock()
					seen[f.what][p.name] = o
					mu.Unlock()
					if p.name == "modern" && !o.passed {
						t.Errorf("modern: %s", o.seen)
					}
				})
			}
		})
	}
	var doc bytes.Buffer
	fmt.Fprintf(&doc, "On %s, with %s.\n\n| fault |", time.Now().UTC().Format(time.DateOnly), versions())
	for _, p := range peers {
		fmt.Fprintf(&doc, " %s |", p.name)
	}
	fmt.Fprintf(&doc, "\n|---|%s\n", strings.Repeat("---|", len(peers)))
	for _, f := range peerFaults {
		fmt.Fprintf(&doc, "| %s |", f.what)
		for _, p := range peers {
			o := seen[f.what][p.name]
			mark := "**fails**"
			if o.passed {
				mark = "passes"
			}
			fmt.Fprintf(&doc, " %s: %s |", mark, o.seen)
		}
		doc.WriteByte('\n')
	}
	if *update {
		redistest.Section(t, filepath.Join("..", "..", "..", "docs", "faults.md"), "peers", "cd internal/evidence/bench && LOCKMIGRATE_SUITES=redis go test -run TestPeersFaults -update", doc.String(), true)
	}
	t.Log("\n" + doc.String())
}

// versions are those of the libraries that were tried.
func versions() string {
	var found []string
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			if regexp.MustCompile(`gomodule/redigo|go-redsync/redsync|bsm/redislock|redis/rueidis|redis/go-redis`).MatchString(m.Path) {
				found = append(found, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
	}
	return strings.Join(found, ", ")
}
