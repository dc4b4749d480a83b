package sidecar_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// A service that holds many locks over a slow network keeps them all: they are looked at together, and not one for each round trip.
func TestManyLocksOverASlowNetwork(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	link := redistest.NewLink(t, b.redis.Addr)
	link.Slow(5*time.Millisecond, 0)
	pool := poolOf(t, link.Addr)
	s := b.sidecar("one", sidecar.DialectNone, func(o *sidecar.Options) { o.Pool, o.Lease = pool, 8*time.Second })
	c := b.client(s)
	const locks = 2000 // 10 ms each are 20 s
	for i := range locks {
		require.NoError(t, c.Send("SETNX", fmt.Sprint("lock:", i), "held"))
	}
	require.NoError(t, c.Flush())
	for range locks {
		taken, err := redis.Int(c.Receive())
		require.NoError(t, err)
		require.Equal(t, 1, taken)
	}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		held := len(b.redis.Do("KEYS", "lock:*").([]any))
		require.Equal(t, locks, held, "locks have ended under their holder")
	}
	s.Close()
	assert.Equal(t, int64(locks), b.redis.Do("HLEN", sidecar.ListKey("orders", "one")))
}

// However many clients wait for a lock, the sidecar asks for them on a few connections: a server has so many in all.
func TestManyWhoWait(t *testing.T) {
	b := newBed(t, stages.Bridge, "jedis-ms")
	link := redistest.NewLink(t, b.redis.Addr)
	link.Slow(2*time.Millisecond, 0)
	pool := poolOf(t, link.Addr)
	s := b.sidecar("one", "", func(o *sidecar.Options) { o.Pool = pool })
	says(t, b.client(s), "1", "SETNX", "lock:a", ends(time.Minute))
	const clients, attempts = 200, 5
	var waiting sync.WaitGroup
	for range clients {
		c := b.client(s)
		waiting.Go(func() {
			for range attempts {
				reply, err := c.Do("SETNX", "lock:a", ends(time.Minute))
				assert.NoError(t, err)
				assert.Equal(t, int64(0), reply)
			}
		})
	}
	most := 0
	over := make(chan struct{})
	go func() { waiting.Wait(); close(over) }()
	for ended := false; !ended; time.Sleep(time.Millisecond) {
		most = max(most, pool.ActiveCount())
		select {
		case <-over:
			ended = true
		default:
		}
	}
	assert.LessOrEqual(t, most, 12)
}

// Of each message there are 20 lines a minute. The first one of the next minute counts what was left out. Other messages are written.
func TestQuiet(t *testing.T) {
	var out strings.Builder
	log := sidecar.Quiet(slog.NewTextHandler(&out, nil)).WithAttrs([]slog.Attr{slog.String("sidecar", "one")})
	write := func(message string, at int) {
		assert.NoError(t, log.Handle(context.Background(), slog.NewRecord(time.Unix(int64(at), 0), slog.LevelWarn, message, 0)))
	}
	for range 50 {
		write("often", 1)
	}
	write("once", 2)
	write("often", 60)
	write("often", 61)
	write("often", 62)
	assert.Equal(t, 22, strings.Count(out.String(), "msg=often sidecar=one"))
	assert.Equal(t, 1, strings.Count(out.String(), "msg=often sidecar=one left_out=31\n"))
	assert.Equal(t, 1, strings.Count(out.String(), "msg=once sidecar=one\n"))
}

// BenchmarkLock compares SETNX and DEL of a lock through a sidecar with the same commands through a proxy that only copies, one after
// the other in one run.
func BenchmarkLock(b *testing.B) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		b.Run(stage.String(), func(b *testing.B) {
			bed := newBed(b, stage, "jedis-ms")
			conns := map[string]redis.Conn{"sidecar": bed.client(bed.sidecar("one", ""))}
			plain, err := redis.Dial("tcp", redistest.Copying(b, bed.redis.Addr, nil))
			require.NoError(b, err)
			b.Cleanup(func() { _ = plain.Close() })
			conns["plain"] = plain
			took := map[string][]time.Duration{}
			text := ends(time.Hour)
			for range b.N {
				for name, conn := range conns {
					for _, args := range [][]any{{"SETNX", "lock:" + name, text}, {"DEL", "lock:" + name}} {
						start := time.Now()
						_, err := conn.Do(args[0].(string), args[1:]...)
						require.NoError(b, err)
						what := name + " " + args[0].(string)
						took[what] = append(took[what], time.Since(start))
					}
				}
			}
			p50 := func(what string) float64 {
				slices.Sort(took[what])
				return float64(took[what][len(took[what])/2]) / 1e3
			}
			for _, command := range []string{"SETNX", "DEL"} {
				b.ReportMetric(p50("sidecar "+command), command+"-us")
				b.ReportMetric(p50("sidecar "+command)/p50("plain "+command), command+"-of-plain")
			}
		})
	}
}
