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
	"os"
	"strings"
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
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
)

// fleet is a fleet that is tried.
type fleet struct {
	name    string
	what    string // for the table
	clients []sim.Client
}

// fleets reads those of testdata/fleets.txt: scenarios, each with its name in its comment. Leases and holds are large beside the delays of a busy machine.
func fleets(t *testing.T) map[string]fleet {
	text, err := os.ReadFile("testdata/fleets.txt")
	require.NoError(t, err)
	all := map[string]fleet{}
	for part := range strings.SplitSeq(string(text), "\n\n") {
		s, err := sim.Parse(part)
		require.NoError(t, err, part)
		name, what, _ := strings.Cut(s.Purpose[0], ": ")
		all[name] = fleet{name, what, s.Fleet.Clients}
	}
	return all
}

// run lets a fleet work on a server until the context ends. The returned function waits for its end.
func (f *fleet) run(ctx context.Context, t *testing.T, server *redistest.Server) (*work.Referee, func()) {
	t.Helper()
	r := work.NewReferee()
	name := fnv.New64a()
	_, _ = io.WriteString(name, f.name)
	var all []*work.Worker
	for i, c := range f.clients {
		random, draws := rand.New(rand.NewPCG(name.Sum64(), uint64(i))), sim.NewGenerator(name.Sum64(), uint64(i)) // no two fleets have the same luck
		var keys []string
		for _, set := range c.Keys {
			for n := range set.Count {
				keys = append(keys, fmt.Sprint(set.Prefix, n))
			}
		}
		w := &work.Worker{
			Name: c.Name,
			Key:  func() string { return keys[random.IntN(len(keys))] },
			Hold: func() time.Duration {
				hold := c.Hold.Draw(&draws)
				if f.name == "tail" { // a scenario's distributions end somewhere
					hold += time.Duration(random.ExpFloat64() * float64(700*time.Millisecond))
				}
				return hold
			},
			Think: func() time.Duration { return c.Think.Draw(&draws) },
		}
		addr := redistest.Copying(t, server.Addr, &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}) // observe tells services by their hosts
		if c.Scheme == model.Bridge {
			w.Take = service(t, addr)
		} else {
			p := &process{t: t, start: func() *holders.Holder { return start(t, &c, addr) }}
			p.h = p.start()
			w.Take, w.Dies = p.take, func() bool { return random.IntN(1e6) < int(c.Dies) && p.dies() }
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

func start(t *testing.T, c *sim.Client, addr string) *holders.Holder {
	kind, options := holders.JedisLock, []holders.Option{holders.Arg("lease", c.Lease), holders.Arg("wait", time.Hour)}
	switch {
	case c.Dialect == protocol.RedisPyFloat:
		kind, options = holders.RedisPy, append(options, holders.Arg("clock", c.Offset))
	case c.Offset != 0:
		options = append(options, holders.Clock(t, c.Offset))
	}
	return holders.Start(t, kind, "redis://"+addr+"/0", options...)
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
