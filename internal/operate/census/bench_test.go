package census

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// BenchmarkScan takes the census of 1,000,000 keys on a real server, each with its value and its TTL:
//
//	LOCKMIGRATE_SUITES=redis go test ./internal/operate/census -run - -bench Scan -benchtime 5x
//
// keys/s is the rate, MiB-resident the most memory that the process had (Linux).
func BenchmarkScan(b *testing.B) {
	const keys = 1_000_000
	now := time.Now().UnixMilli()
	s := redistest.Real(b)
	fill(b, s.Conn(), keys, func(i int) []any {
		switch {
		case i%100 == 0:
			return []any{"SET", fmt.Sprintf("lock:%d", i), strconv.FormatInt(now+int64(i), 10)}
		case i%100 == 1:
			return []any{"SET", fmt.Sprintf("lock:%d", i), "6b1e0b0c-6f0c-4a8b-9d0a-0f1e2d3c4b5a", "PX", 3_000_000 + i}
		case i%10 < 3:
			return []any{"SET", fmt.Sprintf("session:%d", i), "0123456789abcdef0123456789abcdef", "PX", 3_000_000 + i}
		case i%10 < 5:
			return []any{"SET", fmt.Sprintf("counter:%d", i), i}
		}
		return []any{"SET", fmt.Sprintf("cache:%d", i), `{"id":1,"name":"somebody","mail":"somebody@example.org"}`, "PX", 3_000_000 + i}
	})
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(b, err)
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // the most memory, from here on
	rows := 0
	b.ResetTimer()
	for range b.N {
		c := New(Options{Confidence: Medium, GhostAfter: time.Hour, Emit: func(*Row) error { rows++; return nil }})
		conn, err := end.DialRaw(context.Background(), s.Addr)
		require.NoError(b, err)
		require.NoError(b, c.Scan(context.Background(), conn))
		require.EqualValues(b, keys, c.Summary().Scanned)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)*keys/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(float64(rows)/float64(b.N), "rows/op")
	b.ReportMetric(mostResident(), "MiB-resident")
}

func fill(b *testing.B, conn redis.Conn, keys int, command func(i int) []any) {
	b.Helper()
	const batch = 10_000
	for i := 0; i < keys; {
		n := min(batch, keys-i)
		for range n {
			c := command(i)
			require.NoError(b, conn.Send(c[0].(string), c[1:]...))
			i++
		}
		require.NoError(b, conn.Flush())
		for range n {
			_, err := conn.Receive()
			require.NoError(b, err)
		}
	}
}

// mostResident reads the peak of the resident memory, 0 where the system does not tell.
func mostResident() float64 {
	text, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(text, []byte("VmHWM:"))
	var kib float64
	_, _ = fmt.Sscan(string(rest), &kib)
	return kib / 1024
}
