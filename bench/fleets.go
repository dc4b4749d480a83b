package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/pool/cluster"
)

// A fleet is old clients and Go clients that want one key again and again. Each client is a process to the server: it has
// connections of its own. Holds and pauses are between half and one and a half times what the fleet says.
type fleet struct {
	old, young  int
	hold, think time.Duration
}

func (f fleet) String() string {
	return fmt.Sprintf("%d+%d/%d/%d", f.old, f.young, f.hold.Milliseconds(), f.think.Milliseconds())
}

func parseFleet(text string) (f fleet, err error) {
	var hold, think int
	if _, err = fmt.Sscanf(text, "%d+%d/%d/%d", &f.old, &f.young, &hold, &think); err != nil {
		return f, fmt.Errorf("fleet %q: must be like 2+2/100/200: old clients, Go clients, milliseconds that a lock is held, milliseconds between two turns", text)
	}
	f.hold, f.think = time.Duration(hold)*time.Millisecond, time.Duration(think)*time.Millisecond
	return f, nil
}

const standardFleets = "2+2/100/200,4+2/100/200,1+6/100/200,2+2/5/20,4+2/5/20,1+6/5/20"

// fleets measures what old clients get of a key beside Go clients at stage bridge, and beside the same clients when all are old.
func fleets(args []string) error {
	flags := flag.NewFlagSet("bench fleets", flag.ContinueOnError)
	lasts := flags.Duration("for", 20*time.Second, "how long each fleet works")
	of := flags.String("of", standardFleets, "fleets, separated by commas: OLD+GO/HOLD/THINK, times in milliseconds")
	rounds := flags.Int("rounds", 1, "how often")
	noise := flags.Int("noise", 0, "SETNX a second of another application, on other keys")
	deaf := flags.Bool("deaf", false, "Go clients poll: no client tracking")
	mute := flags.Bool("mute", false, "the server refuses INFO")
	blind := flags.Bool("blind", false, "old clients poll by SET NX instead of SETNX")
	clustered := flags.Bool("cluster", false, "the keys are in a cluster of three masters; redis-cli has to be there")
	arrivals := flags.Int("arrivals", 0, "measure the first turn of so many old clients that arrive on a key that the Go clients of the fleet keep busy")
	if err := flags.Parse(args); err != nil {
		return err
	}
	start := func() ([]*server, error) {
		s, err := startServer()
		return []*server{s}, err
	}
	if *clustered {
		start = startCluster
	}
	servers, err := start()
	if err != nil {
		return err
	}
	defer stopAll(servers)
	h := &harness{servers: servers, user: "go", blind: *blind}
	var refused []any
	if *mute {
		refused = append(refused, "-info")
	}
	if *deaf {
		refused = append(refused, "-client|tracking")
	}
	if err := h.allow(refused...); err != nil {
		return err
	}
	if *noise > 0 {
		defer h.makeNoise(*noise)()
	}
	fmt.Printf("%-12s %-7s %s %s   worst wait, fewest turns: of a client\n", "fleet", "Go at", headOf("old"), headOf("Go"))
	for range *rounds {
		for _, text := range split(*of) {
			f, err := parseFleet(text)
			if err != nil {
				return err
			}
			if *arrivals > 0 {
				if err := h.arrivals(f, *arrivals); err != nil {
					return err
				}
				continue
			}
			var got [2]*[2]had
			for stage, name := range []string{"legacy", "bridge"} {
				if got[stage], err = h.play(f, stage == 1, *lasts); err != nil {
					return err
				}
				old, young := &got[stage][0], &got[stage][1]
				fmt.Printf("%-12s %-7s %v %v\n", f, name, old, young)
			}
			ratio := func(i int) float64 { return float64(got[1][i].turns) / float64(max(got[0][i].turns, 1)) }
			late := float64(got[1][0].wait(.95)) / float64(max(got[0][0].wait(.95), 1))
			fmt.Printf("%-12s %-7s %6.2f %7s %7.2f %7s %7s %6.2f\n", f, "ratio", ratio(0), "", late, "", "", ratio(1))
		}
	}
	return nil
}

type harness struct {
	servers []*server // the first one has the keys
	user    string
	blind   bool
	keys    int
}

// allow gives the Go clients' user all rights but some.
func (h *harness) allow(refused ...any) error {
	for _, s := range h.servers {
		if _, err := s.conn.Do("ACL", append([]any{"SETUSER", h.user, "on", "nopass", "~*", "&*", "+@all"}, refused...)...); err != nil {
			return err
		}
	}
	return nil
}

// key is a name that no fleet has used, of a key that the first server has.
func (h *harness) key() (key string, err error) {
	for moved := true; moved; {
		h.keys++
		key = fmt.Sprintf("orders:%d", h.keys)
		_, err = h.servers[0].conn.Do("EXISTS", key)
		moved = err != nil && strings.HasPrefix(err.Error(), "MOVED")
	}
	return key, err
}

// had is what one kind of clients got.
type had struct {
	mu    sync.Mutex
	turns int
	each  []int // of each client
	waits []time.Duration
}

func headOf(kind string) string {
	return fmt.Sprintf("%6s %7s %7s %7s %7s", kind, "p50 ms", "p95 ms", "worst", "fewest")
}

func (h *had) String() string {
	return fmt.Sprintf("%6d %7d %7d %7d %7d", h.turns, h.wait(.5), h.wait(.95), h.wait(1), slices.Min(h.each))
}

func (h *had) add(wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns++
	h.waits = append(h.waits, wait)
}

// leaves counts the turns of a client that is done.
func (h *had) leaves(turns int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.each = append(h.each, turns)
}

// wait is a percentile of the waits in milliseconds.
func (h *had) wait(p float64) int64 {
	if len(h.waits) == 0 {
		return -1
	}
	slices.Sort(h.waits)
	return h.waits[int(p*float64(len(h.waits)-1))].Milliseconds()
}

// member is a client: it takes the key, and gives it back.
type member interface {
	Acquire(ctx context.Context, key string) (release func() error, err error)
	Close()
}

// oldMember is jedis-lock 1.0.0's algorithm.
type oldMember struct {
	conn  redis.Conn
	blind bool
}

const (
	oldPoll  = 100 * time.Millisecond
	oldLease = time.Minute
)

func (o *oldMember) Acquire(ctx context.Context, key string) (func() error, error) {
	for ctx.Err() == nil {
		mine := strconv.FormatInt(time.Now().Add(oldLease).UnixMilli()+1, 10)
		won, err := o.set(key, mine)
		if err != nil {
			return nil, err
		}
		if won {
			return func() error { _, err := o.conn.Do("DEL", key); return err }, nil
		}
		seen, err := redis.Int64(o.conn.Do("GET", key))
		if err != nil && !errors.Is(err, redis.ErrNil) {
			return nil, err
		}
		if err == nil && seen < time.Now().UnixMilli() {
			return nil, fmt.Errorf("key %s holds the expired value %d: nobody here dies", key, seen)
		}
		time.Sleep(oldPoll)
	}
	return nil, ctx.Err()
}

func (o *oldMember) set(key, value string) (bool, error) {
	if !o.blind {
		return redis.Bool(o.conn.Do("SETNX", key, value))
	}
	reply, err := o.conn.Do("SET", key, value, "NX")
	return reply != nil, err
}

func (o *oldMember) Close() { _ = o.conn.Close() }

func (h *harness) member(old bool) (member, error) {
	if old {
		conn, err := redis.Dial("tcp", h.servers[0].addr)
		return &oldMember{conn, h.blind}, err
	}
	dial := func(ctx context.Context, addr string) (redis.Conn, error) {
		return redis.DialContext(ctx, "tcp", addr, redis.DialUsername(h.user), redis.DialPassword("any"))
	}
	var pool lockmigrate.Pool
	var err error
	if len(h.servers) > 1 {
		pool, err = cluster.New(cluster.Options{Addrs: []string{h.servers[0].addr}, Dial: dial})
	} else {
		pool = &redis.Pool{MaxIdle: 16, DialContext: func(ctx context.Context) (redis.Conn, error) { return dial(ctx, h.servers[0].addr) }}
	}
	if err != nil {
		return nil, err
	}
	locker, err := compat.New(pool, compat.Options{Lease: oldLease, ShortestLease: oldLease})
	if err != nil {
		return nil, err
	}
	return clientOf(locker.Acquire, locker.Close, pool.(io.Closer).Close), nil
}

// play lets a fleet work. Go clients are old ones too, or at stage bridge. It is an error when two were inside.
func (h *harness) play(f fleet, bridge bool, lasts time.Duration) (*[2]had, error) {
	got := &[2]had{}
	key, err := h.key()
	if err != nil {
		return got, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	var inside, overlaps atomic.Int64
	var all sync.WaitGroup
	failed := make(chan error, f.old+f.young)
	for i := range f.old + f.young {
		kind := 0
		if i >= f.old {
			kind = 1
		}
		m, err := h.member(kind == 0 || !bridge)
		if err != nil {
			return got, err
		}
		rng := rand.New(rand.NewPCG(1, uint64(i)))
		about := func(d time.Duration) time.Duration { return d/2 + time.Duration(rng.Int64N(int64(d)+1)) }
		all.Go(func() {
			defer m.Close()
			turns := 0
			defer func() { got[kind].leaves(turns) }()
			time.Sleep(about(oldPoll))
			for {
				began := time.Now()
				release, err := m.Acquire(ctx, key)
				if ctx.Err() != nil {
					if err == nil {
						_ = release()
					}
					return
				}
				if err == nil {
					got[kind].add(time.Since(began))
					turns++
					if inside.Add(1) > 1 {
						overlaps.Add(1)
					}
					time.Sleep(about(f.hold)) // the work
					inside.Add(-1)
					err = release()
				}
				if err != nil {
					failed <- err
					return
				}
				time.Sleep(about(f.think))
			}
		})
	}
	all.Wait()
	close(failed)
	if n := overlaps.Load(); n > 0 {
		return got, fmt.Errorf("fleet %v: two were inside, %d times", f, n)
	}
	return got, <-failed
}

// arrivals measures how long an old client that arrives waits for its first turn.
func (h *harness) arrivals(f fleet, n int) error {
	key, err := h.key()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range f.young {
		m, err := h.member(false)
		if err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(2, uint64(i)))
		all.Go(func() {
			defer m.Close()
			for ctx.Err() == nil {
				release, err := m.Acquire(ctx, key)
				if err != nil {
					continue
				}
				time.Sleep(f.hold/2 + time.Duration(rng.Int64N(int64(f.hold)+1)))
				_ = release()
				time.Sleep(f.think/2 + time.Duration(rng.Int64N(int64(f.think)+1)))
			}
		})
	}
	old, err := h.member(true)
	if err != nil {
		return err
	}
	defer old.Close()
	var first had
	for range n {
		time.Sleep(3*time.Second + rand.N(time.Second)) // long enough to be forgotten
		began := time.Now()
		release, err := old.Acquire(ctx, key)
		if err != nil {
			return err
		}
		first.add(time.Since(began))
		if err := release(); err != nil {
			return err
		}
	}
	fmt.Printf("%-12s %-7s first turn of %d that arrive: p50 %d ms, worst %d ms\n", f, "bridge", n, first.wait(.5), first.wait(1))
	return nil
}

// makeNoise is another application that uses SETNX.
func (h *harness) makeNoise(rate int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		conn, err := redis.Dial("tcp", h.servers[0].addr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: noise:", err)
			return
		}
		defer conn.Close()
		for n := 0; ctx.Err() == nil; n++ {
			_, _ = conn.Do("SETNX", "noise:"+strconv.Itoa(n%100), strings.Repeat("x", 10))
			time.Sleep(time.Second / time.Duration(rate))
		}
	})
	return func() { cancel(); done.Wait() }
}
