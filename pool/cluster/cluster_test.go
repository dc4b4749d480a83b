package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(t *testing.T, c *redistest.Cluster) *Pool {
	t.Helper()
	pool, err := New(Options{Addrs: c.Addrs()[:2]})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	return pool
}

func lockers(t *testing.T, pool *Pool) map[string]lockmigrate.Locker {
	t.Helper()
	old, err := legacy.New(pool, legacy.Options{Lease: time.Minute, Poll: 10 * time.Millisecond})
	require.NoError(t, err)
	byRelease, err := legacy.New(pool, legacy.Options{Lease: time.Minute, Poll: 10 * time.Millisecond, Dialect: legacy.Dialect{Name: "jedis-uuid"}, Release: legacy.ReleaseAsDialect})
	require.NoError(t, err)
	queued, err := modern.New(pool, modern.Options{TTL: 5 * time.Second, FenceTTL: time.Minute})
	require.NoError(t, err)
	unfair, err := modern.New(pool, modern.Options{TTL: 5 * time.Second, Unfair: true})
	require.NoError(t, err)
	bridge, err := compat.New(pool, compat.Options{TTL: 5 * time.Second})
	require.NoError(t, err)
	all := map[string]lockmigrate.Locker{
		"legacy": old, "legacy by transaction": byRelease,
		"modern": queued, "bridge": bridge, "modern unfair": unfair,
	}
	for _, l := range all {
		t.Cleanup(func() { _ = l.Close() })
	}
	return all
}

// Locks work on every master, and while their slots move from one to another.
func TestLocksOnAClusterThatReshards(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0)
	pool := newPool(t, c)
	for name, l := range lockers(t, pool) {
		t.Run(name, func(t *testing.T) {
			ctx := redistest.Bounded(t, 30*time.Second)
			// The keys beside a lock's are in its slot, whatever braces its name has: else a script is refused (CROSSSLOT).
			keys := []string{"orders", "{orders}", "{7}orders", "a}b", "{}a", "{a", "a{}{b}", "}{", "{{a}}", "lock.\x00\xff"}
			for i := range 30 {
				keys = append(keys, fmt.Sprintf("%s:%d", name, i))
			}
			for _, key := range keys {
				k, err := l.Acquire(ctx, key)
				require.NoError(t, err)
				require.NoError(t, k.Release(ctx))
			}

			key := "moving:" + name
			slot := protocol.Slot(key)
			held, err := l.Acquire(ctx, key)
			require.NoError(t, err)
			from := c.Owner(slot)
			to := c.Masters[0]
			if to == from {
				to = c.Masters[1]
			}
			waiting := redistest.BeginTurn(ctx, l.Acquire, key)
			m := c.Migrate(slot, to)
			require.NoError(t, held.Renew(ctx), "the key is still here")
			m.Keys(100)
			require.NoError(t, held.Renew(ctx), "the key is there already: ASK")
			m.Finish()
			require.NoError(t, held.Renew(ctx), "the slot is another's: MOVED")
			require.NoError(t, held.Context().Err())
			began := time.Now()
			require.NoError(t, held.Release(ctx))
			require.NoError(t, <-waiting)
			assert.Less(t, time.Since(began), time.Second, "the waiter is woken where the key is now")

			// A new key in a slot that is being moved: where companions of it are here and it would be there,
			// its scripts wait (TRYAGAIN) until the move is over.
			back := c.Migrate(slot, from)
			waiting = redistest.BeginTurn(ctx, l.Acquire, key)
			select {
			case err := <-waiting:
				require.NoError(t, err)
				back.Finish()
			case <-time.After(100 * time.Millisecond):
				back.Finish()
				require.NoError(t, <-waiting)
			}
		})
	}
	for _, s := range c.Masters {
		assert.Empty(t, left(s), "nothing is left behind")
	}
}

// While a slot moves, two masters may each name the other. Nobody hears of it, however often a command goes to and fro.
func TestMastersThatNameEachOther(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0)
	var asked, refused [3]atomic.Int64
	proxies := map[string]*redistest.Link{}
	for i, master := range c.Masters {
		proxies[master.Addr] = redistest.NewProxy(t, master)
		proxies[master.Addr].Rewrite(func(words []string) []string {
			at, keyed := map[string]int{"SETNX": 1, "SET": 1, "GET": 1, "GETSET": 1, "WATCH": 1, "DEL": 1, "EXISTS": 1, "EVAL": 3, "EVALSHA": 3}[words[0]]
			if !keyed || len(words) <= at {
				return words
			}
			slot := protocol.Slot(words[at])
			if slot*3/redistest.Slots != i {
				return words // MOVED, by itself
			}
			// Ever more turns, beyond what is followed without a pause.
			if n := asked[i].Add(1); n%30 < (n/30)%30 {
				refused[i].Add(1)
				return []string{"EVAL", "return redis.error_reply(ARGV[1])", "0", fmt.Sprintf("MOVED %d %s", slot, c.Masters[(i+1)%3].Addr)}
			}
			return words
		})
	}
	pool, err := New(Options{Addrs: c.Addrs(), Dial: func(ctx context.Context, addr string) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", proxies[addr].Addr)
	}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	ctx := redistest.Bounded(t, time.Minute)
	var working sync.WaitGroup
	for name, l := range lockers(t, pool) {
		workers := 2
		if name == "legacy by transaction" { // two of its clients take a key over that is being given back
			workers = 1
		}
		for i := range 3 {
			key, referee := fmt.Sprint(name, i), redistest.NewReferee(t)
			for range workers {
				working.Go(func() {
					for range 10 {
						k, err := l.Acquire(ctx, key)
						if !assert.NoError(t, err, key) {
							return
						}
						referee.Turn(func() { assert.NoError(t, k.Renew(ctx), key) })
						assert.NoError(t, k.Context().Err(), key)
						assert.NoError(t, k.Release(ctx), key)
					}
				})
			}
		}
	}
	working.Wait()
	for i := range refused {
		assert.Greater(t, refused[i].Load(), int64(50), "master %d", i)
	}
}

// left returns a server's keys that are not made to outlive the locks.
func left(s *redistest.Server) (keys []string) {
	all, _ := redis.Strings(s.Do("KEYS", "*"), nil)
	for _, key := range all {
		if ttl, _ := redis.Int64(s.Do("PTTL", key), nil); ttl < 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// Every master fails over, one after the other, while a fleet works: nobody overlaps, every waiter gets
// its turn. The failovers are orderly, so that nothing is lost.
func TestRollingFailoverOfEveryMaster(t *testing.T) {
	masters := 6
	c := redistest.NewCluster(t, masters, 1)
	pool := newPool(t, c)
	all := lockers(t, pool)
	ctx := redistest.Bounded(t, time.Minute)
	stop := make(chan struct{})
	var turns, failures atomic.Int64
	var working sync.WaitGroup
	for i := range 2 * masters {
		// Every key has one kind of locker: kinds do not exclude each other.
		name := []string{"legacy", "bridge", "modern", "modern unfair"}[i%4]
		key := fmt.Sprintf("%s:%d", name, i)
		referee := redistest.NewReferee(t)
		for range 3 {
			working.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					k, err := all[name].Acquire(ctx, key)
					if err != nil {
						failures.Add(1)
						t.Logf("%s: %v", key, err)
						continue
					}
					referee.Turn(func() { time.Sleep(time.Millisecond) })
					turns.Add(1)
					if err := k.Release(ctx); err != nil && !errors.Is(err, lockmigrate.ErrUnknownOutcome) {
						t.Logf("%s: %v", key, err)
					}
				}
			})
		}
	}
	for i := range masters {
		before := turns.Load()
		c.Failover(c.Replicas[i][0])
		redistest.Await(t, "turns after the failover", func() bool { return turns.Load() > before+50 })
	}
	close(stop)
	working.Wait()
	t.Logf("%d turns, %d failures", turns.Load(), failures.Load())
	assert.Zero(t, failures.Load())
}

// One master hangs; the locks of the others do not notice.
func TestOneMasterThatHangs(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0, "--cluster-node-timeout", "60000")
	pool := newPool(t, c)
	ctx := redistest.Bounded(t, 30*time.Second)
	lost := make(chan error, 30)
	l, err := modern.New(pool, modern.Options{TTL: time.Second, ReplyTimeout: 400 * time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	var healthy, hung []lockmigrate.Lock
	for i := range 30 {
		key := fmt.Sprintf("k%d", i)
		k, err := l.Acquire(ctx, key)
		require.NoError(t, err)
		if c.Owner(protocol.Slot(key)) == c.Masters[1] {
			hung = append(hung, k)
		} else {
			healthy = append(healthy, k)
			context.AfterFunc(k.Context(), func() { lost <- context.Cause(k.Context()) })
		}
	}
	require.NotEmpty(t, hung)
	thaw := c.Masters[1].Freeze()
	defer thaw()
	late, frozen := redistest.NewLateness(t), time.Now()
	for _, k := range hung {
		<-k.Context().Done()
		assert.ErrorIs(t, context.Cause(k.Context()), lockmigrate.ErrLost)
	}
	assert.Less(t, time.Since(frozen), 1500*time.Millisecond+late.Most(), "told at the deadline, whatever the server does")
	select {
	case err := <-lost:
		t.Errorf("a lock on another master was lost: %v", err)
	default:
	}
	for _, k := range healthy {
		began := time.Now()
		require.NoError(t, k.Release(ctx))
		assert.Less(t, time.Since(began), 300*time.Millisecond+late.Most())
	}
	thaw()
	for _, k := range hung {
		_ = k.Release(ctx)
	}
}

func TestNothingReachable(t *testing.T) {
	pool, err := New(Options{Addrs: []string{"127.0.0.1:1"}, Patience: 50 * time.Millisecond})
	require.NoError(t, err)
	defer pool.Close()
	l, err := legacy.New(pool, legacy.Options{})
	require.NoError(t, err)
	_, err = l.TryAcquire(t.Context(), "k")
	assert.ErrorContains(t, err, "connection refused")
	assert.NotErrorIs(t, err, lockmigrate.ErrUnknownOutcome, "nothing was sent")
	m, err := modern.New(pool, modern.Options{})
	require.NoError(t, err)
	defer m.Close()
	_, err = m.TryAcquire(t.Context(), "k")
	assert.ErrorContains(t, err, "connection refused")
	assert.NotErrorIs(t, err, lockmigrate.ErrUnknownOutcome, "nothing was sent")
	ctx := redistest.Bounded(t, time.Second)
	_, err = l.TryAcquire(ctx, "k")
	assert.Error(t, err)
}

func TestOptions(t *testing.T) {
	_, err := New(Options{})
	assert.Error(t, err)
	_, err = New(Options{Addrs: []string{"nothing"}})
	assert.Error(t, err)
}

// Any one master hangs; those who wait for locks of the others are handed them at once, whether they began to wait
// before that or after.
func TestAHungMasterHoldsUpNoWaiterOfAnother(t *testing.T) {
	c := redistest.NewCluster(t, 3, 0, "--cluster-node-timeout", "60000")
	pool := newPool(t, c)
	ctx := redistest.Bounded(t, 3*time.Minute)
	keyOn := func(m *redistest.Server, name string) string {
		for i := 0; ; i++ {
			if key := fmt.Sprint(name, i); c.Owner(protocol.Slot(key)) == m {
				return key
			}
		}
	}
	for name, open := range map[string]func() lockmigrate.Locker{
		"modern": func() lockmigrate.Locker {
			l, err := modern.New(pool, modern.Options{})
			require.NoError(t, err)
			return l
		},
		"bridge": func() lockmigrate.Locker {
			l, err := compat.New(pool, compat.Options{})
			require.NoError(t, err)
			return l
		},
	} {
		for i, hung := range c.Masters {
			t.Run(fmt.Sprint(name, " master ", i), func(t *testing.T) {
				holder, waiter := open(), open()
				defer holder.Close()
				defer waiter.Close()
				handed := func(key string, when string, freeze func() func()) {
					t.Helper()
					held, err := holder.Acquire(ctx, key)
					require.NoError(t, err)
					var at time.Time
					got := make(chan error, 1)
					go func() {
						k, err := waiter.Acquire(ctx, key)
						at = time.Now()
						if err == nil {
							err = k.Release(ctx)
						}
						got <- err
					}()
					redistest.Await(t, "it stands in the queue", func() bool {
						for _, s := range c.Masters {
							if s == hung && when != "before" {
								continue
							}
							names, _ := redis.Strings(s.Do("KEYS", "*"+key+"*"), nil)
							if len(names) > 1 {
								return true
							}
						}
						return false
					})
					thaw := freeze()
					defer thaw()
					start := time.Now()
					require.NoError(t, held.Release(ctx))
					require.NoError(t, <-got)
					assert.Less(t, at.Sub(start), time.Second, "it waits since %s the master hung", when)
				}
				other := c.Masters[(i+1)%3]
				handed(keyOn(other, fmt.Sprint(name, i, "before")), "before", hung.Freeze)
				thaw := hung.Freeze()
				defer thaw()
				handed(keyOn(other, fmt.Sprint(name, i, "after")), "after", func() func() { return func() {} })
			})
		}
	}
}

// canned is a connection from which the bytes of a test are read.
type canned struct {
	io.Reader
	net.Conn
}

func (c canned) Read(p []byte) (int, error)     { return c.Reader.Read(p) }
func (canned) Write(p []byte) (int, error)      { return len(p), nil }
func (canned) Close() error                     { return nil }
func (canned) SetReadDeadline(time.Time) error  { return nil }
func (canned) SetWriteDeadline(time.Time) error { return nil }
func (canned) SetDeadline(time.Time) error      { return nil }

func slotsOf(raw []byte) ([]any, error) {
	conn := redis.NewConn(canned{Reader: bufio.NewReader(bytes.NewReader(raw))}, 0, 0)
	return redis.Values(conn.Do("CLUSTER", "SLOTS"))
}

// longLength is a length that redigo would allocate before it has seen a byte of the value.
var longLength = regexp.MustCompile(`[*$][+-]?[0-9]{5,}`)

// FuzzSlots reads what a server, or whoever is in between, answers to CLUSTER SLOTS.
func FuzzSlots(f *testing.F) {
	f.Add([]byte("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n"))
	f.Add([]byte("*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$0\r\n\r\n:0\r\n"))
	f.Add([]byte("*0\r\n"))
	f.Add([]byte("*1\r\n*1\r\n:1\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 4096 || longLength.Match(raw) {
			return
		}
		reply, err := slotsOf(raw)
		if err != nil {
			return
		}
		table, err := topology.ReadSlots(reply, "10.0.0.1:7000", topology.AsTold)
		if err != nil {
			return
		}
		for _, addr := range append(table.Masters, table.Nodes...) {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSlotsOfTheAskedNode(t *testing.T) {
	reply, err := slotsOf([]byte("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:6379\r\n"))
	assert.NoError(t, err)
	table, err := topology.ReadSlots(reply, "10.0.0.1:7000", topology.AsTold)
	assert.NoError(t, err)
	assert.Equal(t, []string{"10.0.0.1:6379"}, table.Masters)
	assert.Equal(t, 16384, table.Served())
}
