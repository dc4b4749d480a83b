package sidecar_test

import (
	"slices"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// BenchmarkLock compares SETNX and DEL of a lock through a sidecar with the same commands through a proxy that only copies, one after
// the other in one run.
func BenchmarkLock(b *testing.B) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		b.Run(stage.String(), func(b *testing.B) {
			bed := newBed(b, stage, "jedis-ms")
			conns := map[string]redis.Conn{"sidecar": bed.client(bed.sidecar("one", ""))}
			plain, err := redis.Dial("tcp", redistest.Copying(b, bed.redis.Addr))
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
