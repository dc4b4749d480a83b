package sidecar

import (
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestRestarts: real services hold locks without a time, and are at work while their sidecars are killed, ended and replaced. No lock ends
// while its service holds it, however long that says nothing, and each is free after its release.
func TestRestarts(t *testing.T) {
	for name, restart := range map[string]func(p *process){
		"killed": func(p *process) { p.kill(); p.start() },
		"ended": func(p *process) {
			require.NoError(p.site, p.cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(p.site, p.cmd.Wait())
			p.start()
		},
		"replaced": func(p *process) {
			before := p.cmd
			p.start()
			require.NoError(p.site, before.Process.Signal(syscall.SIGTERM))
			require.NoError(p.site, before.Wait())
		},
	} {
		for _, m := range []struct {
			kind    holders.Kind
			dialect string
		}{{holders.SetNXUUID, sidecar.DialectNone}, {holders.RedisPy, "redispy-float"}} {
			t.Run(name+", "+m.dialect, func(t *testing.T) {
				t.Parallel()
				s := newSite(t, stages.Modern)
				s.lease = 0 // the services write none
				billing, stock := s.sidecar("billing", m.dialect, 0), s.sidecar("stock", m.dialect, 0)
				service := s.of(m.kind, billing.url(), 0)()
				require.Equal(t, "acquired", service.Do("acquire lock:fleet").Event)
				redistest.Await(t, "the list", 5*time.Second, func() bool {
					return s.server.Do("HGET", sidecar.ListKey("orders", "billing"), "lock:fleet") != nil
				})
				restart(billing)
				time.Sleep(4 * time.Second) // two leases of a sidecar
				other, err := redis.Dial("tcp", stock.line.Listen)
				require.NoError(t, err)
				defer other.Close()
				taken, err := redis.Int(other.Do("SETNX", "lock:fleet", "another"))
				require.NoError(t, err)
				require.Zero(t, taken, redistest.Violated)
				service.Do("release lock:fleet")
				redistest.Await(t, "the lock", 10*time.Second, func() bool {
					taken, err := redis.Int(other.Do("SETNX", "lock:fleet", "another"))
					assert.NoError(t, err)
					return taken == 1
				})
				service.Kill()
			})
		}
	}
}
