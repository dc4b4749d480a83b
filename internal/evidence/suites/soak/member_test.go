package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
	"github.com/lockmigrate/lockmigrate/pool/sentinel"
)

// The Go locks of a soak.
const (
	follower  = "compat"   // compat.Locker, follows the namespace's stage
	token     = "modern"   // package modern, in line on the server
	redissons = "redisson" // package modern/redisson
	planted   = "planted"  // the bug

	sidecarred = "sidecar" // no Go lock: of a service behind a sidecar
)

// post is all that a Go member needs to know, in this process or in one of its own.
type post struct {
	ID, Kind  string
	Topology  string
	Addrs     []string // of the server, the sentinels or the cluster's nodes
	Book      string   // the referee's server
	Namespace string
	Keys      []string
	Dialect   string
	Seed      uint64
}

// pool is one that can be closed.
type pool interface {
	lockmigrate.Pool
	Close() error
}

// pool connects as a service on this topology does.
func (p post) pool() (pool, error) {
	switch p.Topology {
	case onSentinel:
		return sentinel.New(sentinel.Options{Addrs: p.Addrs, Master: masterName})
	case onCluster:
		return cluster.New(cluster.Options{Addrs: p.Addrs})
	default:
		return dialed(p.Addrs[0]), nil
	}
}

func dialed(addr string) *redis.Pool {
	return &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialConnectTimeout(time.Second))
	}}
}

// held is a lock that a Go member holds.
type held struct {
	told    context.Context // its end is the holder's being told
	what    string          // legacy, bridge, modern ...: what the referee judges it by
	fence   int64
	release func(ctx context.Context) error
}

// open makes the member's lock.
func (p post) open() (acquire func(ctx context.Context, key string) (held, error), closer func(), err error) {
	pool, err := p.pool()
	if err != nil {
		return nil, nil, err
	}
	var l lockmigrate.Locker
	switch p.Kind {
	case planted:
		return p.bug(pool), func() { _ = pool.Close() }, nil
	case follower:
		l, err = compat.New(pool, compat.Options{
			Namespace: p.Namespace, Member: p.ID, Dialect: legacy.Dialect{Name: p.Dialect}, TTL: ttl, Lease: lease, ShortestLease: lease,
			ClockLag: 100 * time.Millisecond, CommandDelay: delay, ReplyTimeout: ttl / 2,
		})
	case redissons:
		l, err = redisson.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 2})
	default:
		l, err = modern.New(pool, modern.Options{TTL: ttl, ReplyTimeout: ttl / 2, FenceTTL: time.Minute, Yield: 20 * time.Millisecond})
	}
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string) (held, error) {
		k, err := l.Acquire(ctx, key)
		if err != nil {
			return held{}, err
		}
		what := p.Kind
		if what == follower {
			what = k.Stage().String()
		}
		return held{k.Context(), what, k.Fence(), k.Release}, nil
	}, func() { _, _ = l.Close(), pool.Close() }, nil
}

// bug is what the soak must find: it takes the key as others do, does not renew, overruns, and deletes
// what may be another's.
func (p post) bug(pool lockmigrate.Pool) func(ctx context.Context, key string) (held, error) {
	return func(ctx context.Context, key string) (held, error) {
		for ctx.Err() == nil {
			conn, err := pool.GetContext(ctx)
			if err != nil {
				return held{}, err
			}
			_, err = redis.String(conn.Do("SET", key, "6000000000000000001", "NX", "PX", 100))
			_ = conn.Close()
			if err == nil {
				return held{context.Background(), planted, 0, func(ctx context.Context) error {
					conn, err := pool.GetContext(ctx)
					if err != nil {
						return err
					}
					defer conn.Close()
					_, err = conn.Do("DEL", key)
					return err
				}}, nil
			}
			if !errors.Is(err, redis.ErrNil) {
				return held{}, err
			}
			time.Sleep(2 * time.Millisecond) // the bug's poll
		}
		return held{}, ctx.Err()
	}
}

// work takes turns until the context ends, and says what comes of it. A quiet member leaves the keys to
// others.
func (p post) work(ctx context.Context, beat *pulse, quiet *atomic.Bool, say func(holders.Event)) error {
	acquire, closer, err := p.open()
	if err != nil {
		return err
	}
	defer closer()
	book := dialed(p.Book)
	defer book.Close()
	draw := rand.New(rand.NewPCG(p.Seed, uint64(len(p.ID))))
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for n := 1; ctx.Err() == nil; {
		if quiet.Load() {
			pause(5 * time.Millisecond)
			continue
		}
		key := p.Keys[draw.IntN(len(p.Keys))]
		// An attempt ends in time, so that a member whose key is out of reach turns to another.
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		k, err := acquire(attempt, key)
		cancel()
		if err != nil {
			if ctx.Err() == nil && !quiet.Load() {
				say(holders.Event{Event: "error", Op: "acquire", Key: key, Message: err.Error()})
				pause(20 * time.Millisecond)
			}
			continue
		}
		work := time.Duration(1+draw.IntN(6)) * time.Millisecond
		switch draw.IntN(200) {
		case 0, 1, 2, 3:
			work += ttl // lives by its renewals
		case 4:
			work += 5 * ttl / 2
		}
		if p.Kind == planted && n%2 == 0 {
			work = ttl / 3 // three times what it has taken the key for
		}
		p.inside(book, key, k, n, work, beat, say)
		n++
		bounded, done := context.WithTimeout(context.Background(), ttl)
		err = k.release(bounded)
		done()
		if err != nil {
			say(holders.Event{Event: "error", Op: "release", Key: key, Message: err.Error()})
		}
		say(holders.Event{Event: "turn", Key: key, N: n})
	}
	return nil
}

// inside enters and leaves the book, and stays until the work is done or the holder is told to stop. The
// words of its leaving say which, and when: the process may be stopped before it can say anything.
func (p post) inside(book *redis.Pool, key string, k held, n int, work time.Duration, beat *pulse, say func(holders.Event)) {
	conn := book.Get()
	defer conn.Close()
	if k.told.Err() != nil {
		return
	}
	if _, err := conn.Do("HSET", "book:"+key, p.ID, fmt.Sprintf("%s:%d", k.what, k.fence)); err != nil {
		say(holders.Event{Event: "error", Op: "referee", Key: key, Message: err.Error()})
		return
	}
	say(holders.Event{Event: "entered", Key: key, N: n})
	timer := time.NewTimer(work)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.told.Done():
	}
	at := time.Now()
	due := beat.since(at)
	if gap := at.Sub(due); k.told.Err() == nil && gap > 10*time.Millisecond {
		// The process did not run when this work was over. The lock's timer may have been due as well, and
		// fires now; where the gap was long enough it must.
		wait := 50 * time.Millisecond
		if gap > ttl/4 {
			wait = 2 * ttl
		}
		select {
		case <-time.After(wait):
		case <-k.told.Done():
		}
	}
	end := fmt.Sprintf("left@%d", at.UnixMicro())
	if k.told.Err() != nil {
		end = fmt.Sprintf("told@%d", due.UnixMicro())
	}
	if _, err := conn.Do("HDEL", "book:"+key, p.ID, end); err != nil {
		say(holders.Event{Event: "error", Op: "referee", Key: key, Message: err.Error()})
	}
}

// pulse knows when its process did not run: stopped, or starved of the processor. A timer that was due
// meanwhile could not fire, and a holder that was told late for this reason was told, by the clock, when
// the gap began.
type pulse struct {
	mu   sync.Mutex
	last time.Time
	gaps [][2]time.Time // the latest
}

// beating starts a pulse that ends with the context.
func beating(ctx context.Context, running *sync.WaitGroup) *pulse {
	const every = 2 * time.Millisecond
	b := &pulse{last: time.Now()}
	running.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(every)
			b.mu.Lock()
			now := time.Now()
			if now.Sub(b.last) > 3*every {
				b.gaps = append(b.gaps[max(0, len(b.gaps)-50):], [2]time.Time{b.last, now})
			}
			b.last = now
			b.mu.Unlock()
		}
	})
	return b
}

// since returns when a timer that was seen to fire now may have been due: the beginning of the gaps that
// ended just now, or now itself.
func (b *pulse) since(now time.Time) time.Time {
	const just = 100 * time.Millisecond
	b.mu.Lock()
	defer b.mu.Unlock()
	due := now
	if b.last.Before(due) {
		due = b.last
	}
	for i := len(b.gaps) - 1; i >= 0 && due.Sub(b.gaps[i][1]) < just; i-- {
		due = b.gaps[i][0]
	}
	return due
}

// memberProcess is a Go member in a process of its own, which can be killed and stopped. It reads "hush",
// "speak" and "quit".
func memberProcess(in *bufio.Scanner, say func(holders.Event), args map[string]string) error {
	var p post
	if err := json.Unmarshal([]byte(args["post"]), &p); err != nil {
		return err
	}
	p.ID = args["id"]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var quiet atomic.Bool
	var running sync.WaitGroup
	beat := beating(ctx, &running)
	say(holders.Event{Event: "ready", Kind: p.Kind, ID: p.ID})
	failed := make(chan error, 1)
	running.Go(func() {
		err := p.work(ctx, beat, &quiet, say)
		if err != nil { // its harness waits for a turn that never comes
			fmt.Fprintln(os.Stderr, "this member does not work:", err)
		}
		failed <- err
	})
	for in.Scan() {
		switch strings.TrimSpace(in.Text()) {
		case "hush":
			quiet.Store(true)
		case "speak":
			quiet.Store(false)
		case "quit":
			cancel()
			running.Wait()
			say(holders.Event{Event: "bye"})
			return <-failed
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	return errors.New("the input has ended without a quit")
}

func dialectOf(old string) legacy.Dialect {
	if old == "python" {
		return legacy.Dialect{Name: "redispy-float"}
	}
	return legacy.Dialect{Name: "jedis-ms"}
}
