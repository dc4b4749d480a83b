package doctor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestServersThatRefuseWrites has INFO and CONFIG say what makes a server refuse every lock, or nearly so.
func TestServersThatRefuseWrites(t *testing.T) {
	for _, c := range []struct {
		what   string
		check  func(context.Context, *patient) (Verdict, string, string)
		info   map[string]string
		config map[string]string
		want   Verdict
	}{
		{"memory to spare", memory, map[string]string{"used_memory": "100", "maxmemory": "1000"}, nil, Pass},
		{"memory runs short", memory, map[string]string{"used_memory": "950", "maxmemory": "1000"}, nil, Warn},
		{"memory is full", memory, map[string]string{"used_memory": "1000", "maxmemory": "1000"}, nil, Fail},
		{"full with what does not count", memory, map[string]string{"used_memory": "1000", "maxmemory": "1000", "mem_not_counted_for_evict": "20"}, nil, Warn},
		{"saved", saving, map[string]string{"rdb_last_bgsave_status": "ok", "aof_last_write_status": "ok"}, nil, Pass},
		{"the append-only file cannot be written", saving, map[string]string{"rdb_last_bgsave_status": "ok", "aof_enabled": "1", "aof_last_write_status": "err"}, nil, Fail},
		{"a save failed", saving, map[string]string{"rdb_last_bgsave_status": "err"}, map[string]string{"stop-writes-on-bgsave-error": "yes"}, Fail},
		{"a save failed, and writes go on", saving, map[string]string{"rdb_last_bgsave_status": "err"}, map[string]string{"stop-writes-on-bgsave-error": "no"}, Warn},
		{"enough replicas", replication, map[string]string{"connected_slaves": "2", "min_slaves_good_slaves": "2"}, map[string]string{"min-replicas-to-write": "2"}, Warn},
		{"too few replicas", replication, map[string]string{"connected_slaves": "2", "min_slaves_good_slaves": "1"}, map[string]string{"min-replicas-to-write": "2"}, Fail},
		{"older than the bridge", version, map[string]string{"redis_version": "2.6.9"}, nil, Fail},
		{"no replica, and CONFIG is refused", replication, map[string]string{"connected_slaves": "0", "min_slaves_good_slaves": "0"}, nil, Fail},
	} {
		got, found, _ := c.check(t.Context(), &patient{info: c.info, config: c.config})
		assert.Equal(t, c.want, got, "%s: %s", c.what, found)
	}
}

func TestClock(t *testing.T) {
	for off, want := range map[time.Duration]Verdict{0: Pass, 90 * time.Millisecond: Pass, -200 * time.Millisecond: Warn, 7 * time.Second: Fail, -time.Hour: Fail} {
		got, found, _ := clock(t.Context(), &patient{clockOK: true, offset: off, trip: time.Millisecond})
		assert.Equal(t, want, got, found)
		assert.Contains(t, found, map[bool]string{true: "ahead of", false: "behind"}[off >= 0])
	}
}
