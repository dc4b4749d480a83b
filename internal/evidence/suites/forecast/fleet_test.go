// Package forecast lets real fleets of old clients run under a referee, and compares the double holds that they had with
// what forecast said of them after it had observed them. The suite makes the table in calibration.md.
package forecast

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/client/lifetime"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	work "github.com/lockmigrate/lockmigrate/internal/operate/fleet"
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

// run lets a fleet work on a server until the context ends. The returned function waits for its end.
func (f *fleet) run(ctx context.Context, t *testing.T, server *redistest.Server) (*work.Referee, func()) {
	t.Helper()
	r := work.NewReferee()
	name := fnv.New64a()
	_, _ = io.WriteString(name, f.name)
	var all []*work.Worker
	for i, m := range f.members {
		random := rand.New(rand.NewPCG(name.Sum64(), uint64(i))) // no two fleets have the same luck
		w := &work.Worker{
			Name:  fmt.Sprint(i),
			Key:   func() string { return m.keys[random.IntN(len(m.keys))] },
			Hold:  func() time.Duration { return m.hold(random) },
			Think: func() time.Duration { return m.think(random) },
		}
		addr := redistest.Copying(t, server.Addr, &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}) // observe tells services by their hosts
		if m.kind.Name == "" {
			w.Take = service(t, addr)
		} else {
			p := &process{t: t, start: func() *holders.Holder { return m.start(t, addr) }}
			p.h = p.start()
			w.Take, w.Dies = p.take, func() bool { return random.Float64() < m.crash && p.dies() }
		}
		w.Start(ctx, r, 0)
		all = append(all, w)
	}
	return r, func() {
		for _, w := range all {
			_ = w.Wait(context.Background())
		}
	}
}

func (m *member) start(t *testing.T, addr string) *holders.Holder {
	options := []holders.Option{holders.Arg("lease", m.lease), holders.Arg("wait", time.Hour)}
	switch {
	case m.kind == holders.JedisLock && m.clock != 0:
		options = append(options, holders.Clock(t, m.clock))
	case m.kind == holders.RedisPy:
		options = append(options, holders.Arg("clock", m.clock))
	}
	return holders.Start(t, m.kind, "redis://"+addr+"/0", options...)
}

// process is an old client: a holder program, and its lock where it has one.
type process struct {
	t     *testing.T
	start func() *holders.Holder
	h     *holders.Holder // nil: it was killed
	key   string
	ctx   context.Context
}

func (p *process) take(ctx context.Context, key string) (work.Held, error) {
	if p.h == nil {
		if err := lifetime.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
		p.h = p.start()
	}
	p.key, p.ctx = key, ctx
	return p, p.does(ctx, "acquire", "acquired")
}

// Context does not end with the lock: an old client hears of no loss.
func (p *process) Context() context.Context { return p.ctx }

func (p *process) Release(ctx context.Context) error { return p.does(ctx, "release", "released") }

func (p *process) dies() bool {
	p.h.Kill()
	p.h = nil
	return true
}

func (p *process) does(ctx context.Context, command, done string) error {
	p.h.Send("%s %s", command, p.key)
	select {
	case e, open := <-p.h.Events():
		if e.Event == done {
			return nil
		}
		if !open {
			p.t.Errorf("%v has ended: %s", p.h, p.h.LastWords())
		} else if e.Event != "busy" {
			p.t.Errorf("%v: %+v", p.h, e)
		}
		return fmt.Errorf("%s: %s", command, e.Event)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// service is a Go service with a lock of this project.
func service(t *testing.T, addr string) work.Take {
	pool := &redis.Pool{MaxIdle: 4, DialContext: redistest.Dialer(addr)}
	locker, err := compat.New(pool, compat.Options{Namespace: lockmigrate.StageBridge.String(), TTL: 6 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = locker.Close(), pool.Close() })
	return work.Of(locker.Acquire)
}
