package sim

import (
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

func legacyFleet(n int) *Fleet {
	f := &Fleet{Until: time.Minute, Network: Network{
		Request: Spread(100*time.Microsecond, 200*time.Microsecond, time.Millisecond, 5*time.Millisecond),
		Reply:   Spread(100*time.Microsecond, 200*time.Microsecond, time.Millisecond, 5*time.Millisecond),
		Timeout: time.Second,
	}}
	for i := 0; i < n; i++ {
		f.Clients = append(f.Clients, Client{
			Member: model.Member{
				Name: string(rune('a' + i)), Scheme: model.Legacy, Dialect: protocol.JedisMS, Key: "orders",
				Lease: 10 * time.Second, Poll: 100 * time.Millisecond, Patience: time.Hour,
			},
			Hold:  Uniform(50*time.Millisecond, 500*time.Millisecond),
			Think: Uniform(0, 500*time.Millisecond),
			First: Uniform(0, 500*time.Millisecond),
		})
	}
	return f
}

// BenchmarkSixClients is the documented scenario: six old clients near their server, the referee on.
func BenchmarkSixClients(b *testing.B) {
	f := legacyFleet(6)
	var w World
	var ops int64
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ops += w.Run(f, uint64(i)).Ops
	}
	b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
}
