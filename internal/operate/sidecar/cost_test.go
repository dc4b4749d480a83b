package sidecar_test

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// copying is a proxy that only copies.
func copying(t testing.TB, target string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", target)
			if err != nil {
				_ = down.Close()
				return
			}
			go func() { _, _ = io.Copy(up, down); _ = up.Close() }()
			go func() { _, _ = io.Copy(down, up); _ = down.Close() }()
		}
	}()
	return l.Addr().String()
}

// BenchmarkLock compares SETNX and DEL of a lock through a sidecar with the same commands through a proxy that only copies, one after
// the other in one run.
func BenchmarkLock(b *testing.B) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		b.Run(stage.String(), func(b *testing.B) {
			bed := newBed(b, stage, "jedis-ms")
			conns := map[string]redis.Conn{"sidecar": bed.client(bed.sidecar("one", ""))}
			plain, err := redis.Dial("tcp", copying(b, bed.redis.Addr))
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
