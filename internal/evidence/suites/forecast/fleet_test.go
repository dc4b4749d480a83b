// Package forecast lets real fleets of old clients run under a referee, and compares the double holds that they had with
// what forecast said of them after it had observed them. The suite makes the table in calibration.md.
package forecast

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	inprocess "github.com/lockmigrate/lockmigrate/internal/operate/fleet"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
)

// fleet is a fleet that is tried.
type fleet struct {
	name    string
	what    string // for the table
	members []member
}

// member is one old client: its lock, its clock, its keys and habits.
type member struct {
	kind  holders.Kind // none: a service of this project, at the stage of its namespace
	lease time.Duration
	clock time.Duration // ahead of the server's
	keys  []string      // it chooses one at random for each turn
	hold  duration
	think duration
	crash float64 // the chance that it is killed inside, each turn

	poll    time.Duration // of redis-py; 0: 100 ms
	sidecar bool          // it reaches the server through one of its own
}

// duration draws one.
type duration func(*rand.Rand) time.Duration

func between(lo, hi time.Duration) duration {
	return func(r *rand.Rand) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
}

// mixed draws from one, and with a chance from the other.
func mixed(usual, rare duration, chance float64) duration {
	return func(r *rand.Rand) time.Duration {
		if r.Float64() < chance {
			return rare(r)
		}
		return usual(r)
	}
}

func exponential(least, mean time.Duration) duration {
	return func(r *rand.Rand) time.Duration { return least + time.Duration(r.ExpFloat64()*float64(mean)) }
}

// referee sees who is inside. A member is inside from the moment in which it says that it acquired the lock to the
// moment before it is told to release it.
type referee struct {
	mu       sync.Mutex
	inside   map[string]map[int]bool // by key
	turns    int
	overlaps int
	late     []time.Duration // by how much each hold was longer than was asked for
}

func (r *referee) enters(key string, who int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside[key] == nil {
		r.inside[key] = map[int]bool{}
	}
	r.turns++
	r.overlaps += len(r.inside[key])
	r.inside[key][who] = true
}

func (r *referee) leaves(key string, who int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside[key], who)
}

// slept notes what a busy machine added to a hold.
func (r *referee) slept(late time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = append(r.late, late)
}

// lateness is the median, the hundredth part that is largest, and the most, in ms.
func (r *referee) lateness() [3]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.late) == 0 {
		return [3]float64{}
	}
	all := slices.Sorted(slices.Values(r.late))
	at := func(n int) float64 { return float64(all[n].Microseconds()) / 1000 }
	return [3]float64{at(len(all) / 2), at(len(all) * 99 / 100), at(len(all) - 1)}
}

// begins returns the double holds so far, and forgets how late the holds were.
func (r *referee) begins() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = nil
	return r.overlaps
}

// counts returns the turns and double holds so far.
func (r *referee) counts() (turns, overlaps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns, r.overlaps
}

// run lets a fleet work on a server until the context ends. The returned function waits for its end.
func (f *fleet) run(ctx context.Context, t *testing.T, server *redistest.Server) (*referee, func()) {
	t.Helper()
	r := &referee{inside: map[string]map[int]bool{}}
	name := fnv.New64a()
	_, _ = io.WriteString(name, f.name)
	var all sync.WaitGroup
	for i, m := range f.members {
		addr := fromHost(t, server.Addr, fmt.Sprintf("127.0.1.%d", i+1))
		if m.sidecar {
			addr = m.behind(t, addr, fmt.Sprint("service-", i+1))
		}
		l := m.start(t, addr)
		random := rand.New(rand.NewPCG(name.Sum64(), uint64(i))) // no two fleets have the same luck
		all.Go(func() { m.work(ctx, t, l, addr, i, random, r) })
	}
	return r, all.Wait
}

// lock is how a member takes and gives back its lock.
type lock interface {
	acquire(ctx context.Context, key string) (lost context.Context, ok bool)
	release(ctx context.Context, key string)
	kill()
}

func (m *member) start(t *testing.T, addr string) lock {
	if m.kind.Name == "" {
		return newService(t, addr, cmp.Or(m.lease, 6*time.Second))
	}
	options := []holders.Option{holders.Arg("lease", m.lease), holders.Arg("wait", time.Hour)}
	switch {
	case m.kind == holders.JedisLock && m.clock != 0:
		environ := redistest.MovedClock(t, m.clock)
		options = append(options, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), environ...) })
	case m.kind == holders.RedisPy:
		options = append(options, holders.Arg("clock", m.clock))
	}
	if m.poll > 0 {
		options = append(options, holders.Arg("poll", m.poll))
	}
	return &process{t, holders.Start(t, m.kind, "redis://"+addr+"/0", options...)}
}

// behind starts a sidecar before the server, on the member's host, and returns its address.
func (m *member) behind(t *testing.T, server, name string) string {
	t.Helper()
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", server) }}
	t.Cleanup(func() { _ = pool.Close() })
	end, err := endpoint.Parse("redis://"+server, endpoint.TLSFiles{})
	require.NoError(t, err)
	s, err := inprocess.StartSidecar(t.Context(), sidecar.Options{
		Pool: pool, Namespace: lockmigrate.StageBridge.String(), Name: name, Clock: func() time.Time { return time.Now().Add(m.clock) },
	}, end, "", sidecar.Listener{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s.Addr
}

// process is a holder program.
type process struct {
	t *testing.T
	h *holders.Holder
}

func (p *process) acquire(ctx context.Context, key string) (context.Context, bool) {
	p.h.Send("acquire %s", key)
	e, ok := p.heard(ctx)
	if ok && e.Event != "acquired" && e.Event != "busy" {
		p.t.Errorf("%v: %+v", p.h, e)
	}
	return ctx, ok && e.Event == "acquired" // an old client hears of no loss
}

func (p *process) release(ctx context.Context, key string) {
	p.h.Send("release %s", key)
	p.heard(ctx)
}

func (p *process) kill() { p.h.Kill() }

func (p *process) heard(ctx context.Context) (holders.Event, bool) {
	select {
	case e, open := <-p.h.Events():
		if !open && ctx.Err() == nil {
			p.t.Errorf("%v has ended: %s", p.h, p.h.LastWords())
		}
		return e, open
	case <-ctx.Done():
		return holders.Event{}, false
	}
}

// service is a Go service with a lock of this project.
type service struct {
	t      *testing.T
	locker compat.Locker
	lock   lockmigrate.Lock
}

func newService(t *testing.T, addr string, ttl time.Duration) *service {
	pool := &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", addr) }}
	locker, err := compat.New(pool, compat.Options{Namespace: lockmigrate.StageBridge.String(), TTL: ttl})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = locker.Close()
		_ = pool.Close()
	})
	return &service{t: t, locker: locker}
}

func (s *service) acquire(ctx context.Context, key string) (context.Context, bool) {
	lock, err := s.locker.Acquire(ctx, key)
	if err != nil {
		if ctx.Err() == nil {
			s.t.Errorf("a service at stage bridge: %v", err)
		}
		return ctx, false
	}
	s.lock = lock
	return lock.Context(), true
}

func (s *service) release(ctx context.Context, _ string) { _ = s.lock.Release(ctx) } // it may have lost it

// kill is for fleets whose old clients crash. A service here is a part of the test's own process, which cannot be killed for it.
func (s *service) kill() { s.t.Error("no fleet may have services that crash") }

// work takes turns. A turn that the context ends is not released: the process ends with the test.
func (m *member) work(ctx context.Context, t *testing.T, l lock, addr string, number int, random *rand.Rand, r *referee) {
	sleep := func(until context.Context, d time.Duration) {
		select {
		case <-until.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		key := m.keys[random.IntN(len(m.keys))]
		lost, ok := l.acquire(ctx, key)
		if !ok {
			sleep(ctx, 100*time.Millisecond)
			continue
		}
		r.enters(key, number)
		hold, began := m.hold(random), time.Now()
		sleep(lost, hold) // a service that is told of its loss stops
		r.leaves(key, number)
		if lost.Err() == nil {
			r.slept(time.Since(began) - hold)
		}
		if ctx.Err() != nil {
			return
		}
		if random.Float64() < m.crash {
			l.kill()
			if sleep(ctx, time.Second); ctx.Err() == nil {
				l = m.start(t, addr)
			}
			continue
		}
		l.release(ctx, key)
		sleep(ctx, m.think(random))
	}
}

// fromHost returns the address of a server as it is reached from another address of this machine: observe tells services by
// their hosts.
func fromHost(t *testing.T, server, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := dialer.Dial("tcp", server)
			if err != nil {
				_ = in.Close()
				return
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].Close()
					_ = way[1].Close()
				}()
			}
		}
	}()
	return l.Addr().String()
}
