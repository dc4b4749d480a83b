package sidecar_test

import (
	"context"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/rights"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestLeastRights: with the rights of the table, and no others, nothing is refused.
func TestLeastRights(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		b := newBed(t, stage, "jedis-ms")
		for i, name := range []string{"own", "service"} {
			args := []any{"SETUSER", name, "on", ">" + name}
			for _, rule := range rights.Sidecars[i].Rules([]string{"lock:*"}, nil) {
				args = append(args, rule)
			}
			b.redis.Do("ACL", args...)
		}
		s := b.sidecar("one", "", func(o *sidecar.Options) {
			o.Pool = &redis.Pool{MaxIdle: 4, DialContext: func(ctx context.Context) (redis.Conn, error) {
				return redis.DialContext(ctx, "tcp", b.redis.Addr, redis.DialUsername("own"), redis.DialPassword("own"))
			}}
		})
		c, other := b.client(s), b.client(b.sidecar("two", ""))
		b.redis.Do("ACL", "SETUSER", "service", "+setnx", "+expire") // its own: at stage legacy, and within sidecar_run.lua
		says(t, c, "OK", "AUTH", "service", "service")
		text := ends(20 * time.Second)
		says(t, c, "1", "SETNX", "lock:r", text)
		says(t, c, text, "GET", "lock:r")
		if stage != stages.Legacy {
			says(t, c, "1", "EXPIRE", "lock:r", 10)
			says(t, other, "0", "SETNX", "lock:r", text)
		}
		says(t, c, "1", "DEL", "lock:r")
		if stage == stages.Legacy {
			continue
		}
		says(t, c, "0", "SETNX", "lock:r", text)
		says(t, other, "1", "SETNX", "lock:r", text)
		says(t, other, "1", "DEL", "lock:r")
		says(t, c, "1", "SETNX", "lock:r", text)
		time.Sleep(time.Second) // the keeper looks
		log, err := redis.Values(b.redis.Do("ACL", "LOG"), nil)
		require.NoError(t, err)
		assert.Empty(t, log, "%s", log)
	}
}
