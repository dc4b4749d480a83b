package census_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// BenchmarkUnderLoad lets redis-benchmark read from a server of 1,000,000 keys, a hundredth of them ghosts, and
// takes the census, or sweeps, until it is done; redis-benchmark itself says what latency its clients had:
//
//	LOCKMIGRATE_SUITES=redis go test ./internal/operate/census -run - -bench UnderLoad -benchtime 1x
//
// p99-ms beside that of the run called alone is what the tool adds; keys/s counts the keys that its pattern
// chooses. "flat out" is 50 clients that ask as fast as they can, so that the server is saturated before the tool
// comes; "one client" asks again when it has its answer.
func BenchmarkUnderLoad(b *testing.B) {
	const keys = 1_000_000
	s := redistest.Real(b)
	old := time.Now().Add(-48 * time.Hour).UnixMilli()
	// One script rather than a million commands of ours.
	s.Do("EVAL", `for i = 0, ARGV[1] - 1 do
	  if i % 100 == 0 then redis.call('SET', 'lock:' .. i, string.format('%.0f', ARGV[2] + i))
	  else redis.call('SET', 'cache:' .. i, 'somebody@example.org', 'PX', 3000000 + i) end
	end`, 0, keys, old)
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(b, err)

	ignore := func(census.SweepEntry) error { return nil }
	scan := func(rate int) func(ctx context.Context) (int64, error) {
		return func(ctx context.Context) (int64, error) {
			c := census.New(census.Options{Confidence: census.Medium, GhostAfter: time.Hour, Rate: rate, Emit: func(*census.Row) error { return nil }})
			conn, err := end.DialRaw(ctx, s.Addr)
			if err != nil {
				return 0, err
			}
			err = c.Scan(ctx, conn)
			return c.Summary().Scanned, err
		}
	}
	tools := []struct {
		name string
		run  func(ctx context.Context) (looked int64, err error)
	}{
		{"alone", nil},
		{"scan", scan(0)}, {"scan at 50,000 keys a second", scan(50_000)},
		{"sweep, dry", func(ctx context.Context) (int64, error) {
			summary, err := census.Sweep(ctx, end, census.SweepOptions{Match: []string{"lock:*"}, GhostAfter: time.Hour, Rate: 100, Emit: ignore})
			return summary.Scanned, err
		}},
		{"sweep that removes 100 ghosts a second", func(ctx context.Context) (int64, error) {
			summary, err := census.Sweep(ctx, end, census.SweepOptions{Match: []string{"lock:*"}, GhostAfter: time.Hour, Rate: 100, Execute: true, Emit: ignore, Journal: ignore})
			return summary.Scanned, err
		}},
	}
	for _, load := range []struct {
		name              string
		clients, requests int
	}{{"one client", 1, 50_000}, {"flat out", 50, 500_000}} {
		for _, tool := range tools {
			b.Run(load.name+"/"+tool.name, func(b *testing.B) {
				for range b.N {
					ctx, cancel := context.WithCancel(b.Context())
					looked, spent, done := int64(0), time.Duration(0), make(chan struct{})
					go func() { // again and again while the load lasts
						defer close(done)
						for tool.run != nil && ctx.Err() == nil {
							began := time.Now()
							n, err := tool.run(ctx)
							looked += n
							spent += time.Since(began)
							if err != nil && ctx.Err() == nil {
								b.Error(err)
								return
							}
						}
					}()
					latency := generate(b, s, load.clients, load.requests)
					cancel()
					<-done
					b.ReportMetric(latency["p50_latency_ms"], "p50-ms")
					b.ReportMetric(latency["p99_latency_ms"], "p99-ms")
					b.ReportMetric(latency["rps"], "requests/s")
					if spent > 0 {
						b.ReportMetric(float64(looked)/spent.Seconds(), "keys/s")
					}
				}
			})
		}
	}
}

// generate runs redis-benchmark and returns what it measured.
func generate(b *testing.B, s *redistest.Server, clients, requests int) map[string]float64 {
	b.Helper()
	host, port := "127.0.0.1", s.Addr[len("127.0.0.1:"):]
	out, err := exec.Command("redis-benchmark", "-h", host, "-p", port, "-c", strconv.Itoa(clients), "-n", strconv.Itoa(requests),
		"-r", "1000000", "--csv", "GET", "cache:__rand_int__").Output()
	require.NoError(b, err)
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	require.NoError(b, err)
	require.Len(b, rows, 2, "%s", out)
	figures := map[string]float64{}
	for i, name := range rows[0] {
		figures[name], _ = strconv.ParseFloat(rows[1][i], 64)
	}
	require.Positive(b, figures["rps"], fmt.Sprint(rows))
	return figures
}
