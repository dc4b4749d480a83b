package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // the peers of a fault wait, most of the time; the command line still decides
	redistest.Main(m)
}

// server is the one of $BENCH_SERVER, which run has put on a core of its own, or one for this test.
func server(t testing.TB) (addr string, admin redis.Conn) {
	t.Helper()
	if addr = os.Getenv("BENCH_SERVER"); addr == "" {
		addr = redistest.Real(t).Addr
	}
	admin, err := redis.Dial("tcp", addr)
	check(t, err)
	t.Cleanup(func() { _ = admin.Close() })
	return addr, admin
}

// each runs a benchmark for each contestant that fits, as lock=NAME, which benchstat makes a column of.
func each(b *testing.B, fits func(c contestant) bool, run func(t *trial)) {
	for _, c := range contestants {
		if fits(c) && (!c.aside || os.Getenv("BENCH_ASIDE") != "") {
			b.Run("lock="+c.name, func(b *testing.B) {
				t := &trial{B: b, contestant: c, key: "bench-" + c.name + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
				t.addr, t.admin = server(b)
				run(t)
				if n := t.overlaps.Load(); n > 0 {
					b.Fatalf("two holders at once, %d times", n)
				}
			})
		}
	}
}

func solo(c contestant) bool  { return c.solo }
func crowd(c contestant) bool { return c.solo && c.name != "legacy" }
func waits(c contestant) bool { return c.waits }

// told are the locks to choose from whose waiters are woken, and the ideal.
func told(c contestant) bool { return c.name == "modern" || c.name == "compat" || c.list }

// trial is a contestant in a benchmark.
type trial struct {
	*testing.B
	contestant
	addr, key string
	admin     redis.Conn
	brought   bool // the token of a list
	inside    atomic.Int32
	overlaps  atomic.Int32
}

// client opens one more client, with connections as a process of its own would have.
func (t *trial) client() client {
	c := t.open(t, t.addr)
	if t.list && !t.brought {
		t.brought = true
		_, err := t.admin.Do("LPUSH", t.key, "token")
		check(t, err)
	}
	return c
}

// bounded is a caller's context. go test has no timeout for benchmarks.
func (t *trial) bounded() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second+time.Duration(t.N)*10*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// went checks how a pair went. rueidislock gives the server 20 ms to answer. On a busy machine that is too little, and it then waits for ever for a
// key that is free: there is nothing to measure.
func (t *trial) went(err error) {
	if errors.Is(err, context.DeadlineExceeded) && strings.HasPrefix(t.name, "rueidislock") {
		t.Skip("left out: rueidislock missed that its key is free, as it may on a busy machine, and waits for ever; no other contestant is left out so")
	}
	check(t, err)
}

// usage is what this process and the server have spent.
type usage struct {
	client, server time.Duration
	reads          float64 // of sockets by the server: commands that came together count once
	connections    float64 // without the one that asks
}

func (t *trial) usage() usage {
	fields, err := endpoint.Info(context.Background(), t.admin)
	check(t, err)
	value := func(name string) float64 {
		f, _ := strconv.ParseFloat(fields[name], 64)
		return f
	}
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return usage{time.Duration(u.Utime.Nano() + u.Stime.Nano()), time.Duration((value("used_cpu_sys") + value("used_cpu_user")) * 1e9),
		value("total_reads_processed"), value("connected_clients") - 1}
}

// costs reports what each of b.N operations cost since before.
func (t *trial) costs(before usage) {
	after, n := t.usage(), float64(t.N)*1e3
	client, server := float64(after.client-before.client)/n, float64(after.server-before.server)/n
	t.ReportMetric(client, "client-us/op")
	t.ReportMetric(server, "server-us/op")
	t.ReportMetric(client+server, "cpu-us/op")
	t.ReportMetric((after.reads-before.reads-1)/float64(t.N), "reads/op")
}

func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return float64(all[int(q*float64(len(all)-1))]) / 1e3
}

// BenchmarkSolo takes a free lock and gives it back, again and again.
func BenchmarkSolo(b *testing.B) {
	each(b, solo, func(t *trial) {
		c, ctx := t.client(), t.bounded()
		for range 300 {
			t.went(c.Pair(ctx, t.key))
		}
		t.ReportAllocs()
		before := t.usage()
		t.ResetTimer()
		for range t.N {
			t.went(c.Pair(ctx, t.key))
		}
		t.StopTimer()
		t.costs(before)
	})
}

// BenchmarkCrowd is many goroutines of one process, each with a key of its own.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []int{1, 2, 4, 8, 16, 32, 64, 256} {
		b.Run(fmt.Sprint("goroutines=", n), func(b *testing.B) {
			each(b, func(c contestant) bool { return crowd(c) && (n == 64 || c.shares || c.name == "raw") }, func(t *trial) {
				c, ctx := t.client(), t.bounded()
				took, failures := make([][]time.Duration, n), make([]error, n)
				work := func(left *atomic.Int64) {
					var all sync.WaitGroup
					for g := range n {
						key := fmt.Sprint(t.key, g)
						all.Go(func() {
							for now := time.Now(); failures[g] == nil && left.Add(-1) >= 0; {
								failures[g] = c.Pair(ctx, key)
								began := now
								now = time.Now()
								took[g] = append(took[g], now.Sub(began))
							}
						})
					}
					all.Wait()
					t.went(errors.Join(failures...))
				}
				var left atomic.Int64
				left.Store(int64(10 * n))
				work(&left)
				clear(took)
				before := t.usage()
				t.ResetTimer()
				left.Store(int64(t.N))
				work(&left)
				t.StopTimer()
				t.costs(before)
				t.ReportMetric(quantile(slices.Concat(took...), 0.99), "p99-us")
			})
		})
	}
}

// hold keeps a lock for a while. Two holders are seen.
func (t *trial) hold(inside section, d time.Duration) {
	if t.inside.Add(1) != 1 {
		t.overlaps.Add(1)
	}
	_ = inside.stay(d)
	t.inside.Add(-1)
}

// pass has two clients hand one lock to and fro. Each holds it for 3 ms, so that the other one waits by then, and asks again when that has
// it. It reports the time from before a release until the other client has the lock, of those who receive counts.
func (t *trial) pass(first, second client, receives func(who int) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(t.N)*time.Second)
	defer cancel()
	inside, err := newSection()
	check(t, err)
	defer inside.close()
	took := make(chan time.Duration, 2*t.N+2)
	has := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	var released atomic.Int64
	var both sync.WaitGroup
	failures := [2]error{}
	turns := func(who int, c client) error {
		for turn := range t.N {
			if who == 1 || turn > 0 { // the other one has the lock
				select {
				case <-has[1-who]:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			release, err := c.Acquire(ctx, t.key)
			if err != nil {
				return err
			}
			if at := released.Load(); at != 0 && receives(who) {
				took <- time.Duration(time.Now().UnixNano() - at)
			}
			has[who] <- struct{}{}
			t.hold(inside, 3*time.Millisecond)
			released.Store(time.Now().UnixNano())
			if err := release(); err != nil {
				return err
			}
		}
		return nil
	}
	for who, c := range []client{first, second} {
		both.Go(func() { failures[who] = turns(who, c) })
	}
	both.Wait()
	check(t, errors.Join(failures[:]...))
	close(took)
	var all []time.Duration
	for d := range took {
		all = append(all, d)
	}
	t.ReportMetric(quantile(all, 0.5), "p50-us")
	t.ReportMetric(quantile(all, 0.99), "p99-us")
}

// BenchmarkHandoff is a lock that one client gives back while another one waits.
func BenchmarkHandoff(b *testing.B) {
	each(b, waits, func(t *trial) { t.pass(t.client(), t.client(), func(int) bool { return true }) })
}

// openOld is an unmodified client of the old scheme.
func openOld(t testing.TB, addr string) client {
	conn, err := redis.Dial("tcp", addr)
	check(t, err)
	return clientOf(t, func(ctx context.Context, key string) (release, error) {
		for ctx.Err() == nil {
			n, err := redis.Int(conn.Do("SETNX", key, time.Now().Add(time.Minute).UnixMilli()))
			if n == 1 || err != nil {
				return func() error { _, err := conn.Do("DEL", key); return err }, err
			}
			time.Sleep(500 * time.Microsecond)
		}
		return nil, ctx.Err()
	}, conn.Close)
}

// BenchmarkOldDel is the same from an old client, which sends DEL. No other library hears that; lock=bare is the floor.
func BenchmarkOldDel(b *testing.B) {
	each(b, func(c contestant) bool { return c.old }, func(t *trial) {
		t.pass(openOld(t, t.addr), t.client(), func(who int) bool { return who == 1 })
	})
}

// BenchmarkTurns has everybody want one lock all the time. Each holds it for 1 ms. Everybody has had a turn before it counts.
func BenchmarkTurns(b *testing.B) {
	for _, c := range []struct {
		name                string
		clients, goroutines int
		fits                func(contestant) bool
	}{{"4x4", 4, 4, waits}, {"1x16", 1, 16, waits}, {"32x1", 32, 1, told}, {"4x1", 4, 1, told}, {"400x1", 400, 1, told}} {
		b.Run("clients="+c.name, func(b *testing.B) {
			each(b, c.fits, func(t *trial) { t.turns(c.clients, c.goroutines) })
		})
	}
}

func (t *trial) turns(clients, goroutines int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	n := clients * goroutines
	turns, took, failures := make([]int, n), make([][]time.Duration, n), make([]error, n)
	var late, left atomic.Int64 // who has had no turn yet; turns to come
	late.Store(int64(n))
	left.Store(int64(t.N))
	counts := make(chan struct{})
	var before usage
	var began time.Time
	var all sync.WaitGroup
	for k := range clients {
		c := t.client()
		for j := range goroutines {
			i := k*goroutines + j
			all.Go(func() {
				inside, err := newSection()
				if failures[i] = err; err != nil {
					return
				}
				defer inside.close()
				for first, counted := true, false; ctx.Err() == nil && left.Load() > 0; first = false {
					select {
					case <-counts:
						counted = true
					default:
					}
					asked := time.Now()
					release, err := c.Acquire(ctx, t.key)
					if err != nil {
						if left.Load() > 0 && ctx.Err() == nil { // its time is not over: it is broken
							failures[i] = err
						}
						return
					}
					if counted && left.Add(-1) >= 0 {
						turns[i]++
						took[i] = append(took[i], time.Since(asked))
					}
					if first && late.Add(-1) == 0 {
						before, began = t.usage(), time.Now()
						t.ResetTimer()
						close(counts)
					}
					t.hold(inside, time.Millisecond)
					if left.Load() <= 0 {
						cancel()
					}
					if failures[i] = release(); failures[i] != nil {
						return
					}
				}
			})
		}
	}
	all.Wait()
	t.StopTimer()
	if late.Load() > 0 || left.Load() > 0 {
		broken := errors.Join(failures...)
		starved := fmt.Sprintf("starved: %d of %d had no turn, %d turns are left (%v)", late.Load(), n, left.Load(), broken)
		if told(t.contestant) || broken != nil {
			t.Fatal(starved) // whose waiters are woken in turn must not
		}
		t.Skip(starved) // a lock that polls promises no turn: its result is that it has none
	}
	t.costs(before)
	t.ReportMetric(float64(t.N)/time.Since(began).Seconds(), "turns/s")
	t.ReportMetric(float64(slices.Max(turns))/float64(max(slices.Min(turns), 1)), "most/fewest")
	t.ReportMetric(quantile(slices.Concat(took...), 0.99)/1e3, "p99-ms")
}

// Each contestant keeps a second client out while it holds, and lets it in afterwards.
func TestContestantsAreLocks(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	for _, c := range contestants {
		if !c.waits && !c.solo {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			addr, admin := server(t)
			two := [2]client{c.open(t, addr), c.open(t, addr)}
			if c.list {
				_, err := admin.Do("LPUSH", "check", "token")
				check(t, err)
			}
			acquire := func(c client) (release func() error) {
				for end := time.Now().Add(10 * time.Second); ; {
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // rueidislock may miss that the key is free, and wait for ever
					t.Cleanup(cancel)                                              // the lock may live by it
					release, err := c.Acquire(ctx, "check")
					if err == nil {
						return release
					}
					if !errors.Is(err, errHeld) && !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
						t.Fatal(err)
					}
				}
			}
			release := acquire(two[0])
			impatient := redistest.Bounded(t, 60*time.Millisecond)
			if _, err := two[1].Acquire(impatient, "check"); err == nil {
				t.Fatal("a second client got a lock that was held")
			}
			check(t, release())
			check(t, acquire(two[1])())
		})
	}
}
