package stages

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzRecord reads what somebody else may have written into the record and the members of a namespace.
func FuzzRecord(f *testing.F) {
	f.Add(`["lock:*"]`, `{"seq":1,"epoch":1,"stage":1,"lo":1,"hi":1,"seen":1,"ends":2,"longest":3,"skew":4,"info":"{}"}`, `{"dialect":"jedis-ms","shortest_ms":1000}`, "lock:1", int64(1))
	f.Add(`[]`, `{}`, `{"lag_ms":-1}`, "", int64(-1))
	f.Add(`["*","?",""]`, `{"epoch":1e308,"ends":-1e308,"info":"\u0000"}`, `{"shortest_ms":9e18}`, "a*b", int64(99))
	f.Add(`null`, `[]`, `null`, "\xff", int64(2))
	f.Fuzz(func(t *testing.T, patterns, entry, clients, key string, stage int64) {
		s := &Store{Namespace: "n"}
		r, err := s.record(1, stage, 0, patterns, clients)
		if err == nil {
			require.True(t, Valid(r.Stage), "stage %d passed", r.Stage)
			if r.Shortest < 0 || r.ClockLag < 0 || r.CommandDelay < 0 {
				t.Fatalf("a time below zero passed: %+v", r)
			}
			covered := r.Covers(key)
			if CheckPatterns(r.Patterns) == nil && covered && key == RecordKey("n") {
				t.Fatal("a namespace that covers its own record")
			}
		}
		if m, _, err := member("id", entry, time.UnixMilli(1)); err == nil {
			_ = m.ID
		}
	})
}
