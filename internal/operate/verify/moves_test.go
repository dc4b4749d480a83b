package verify_test

import (
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// A node may join a cluster, serve an old client and leave, while both lists of the masters are the same.
func TestANodeThatComesAndGoes(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0, "--cluster-allow-replica-migration", "no")
	guest := c.Masters[2] // it has no slots
	for _, s := range c.Masters {
		s.Do("CLUSTER", "DELSLOTSRANGE", 2*redistest.Slots/3, redistest.Slots-1)
	}
	c.Masters[1].Do("CLUSTER", "ADDSLOTSRANGE", 2*redistest.Slots/3, redistest.Slots-1)
	end, err := endpoint.Parse(c.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	redistest.Await(t, "two masters", 30*time.Second, func() bool {
		masters, err := end.Masters(t.Context())
		return err == nil && len(masters) == 2
	})
	c.AwaitOK()
	slot := protocol.Slot("lock:a")
	owner := c.Owner(slot)
	takes := func(before func(redis.Conn)) {
		conn := guest.Conn()
		before(conn)
		taken, err := conn.Do("SETNX", "lock:a", time.Now().Add(time.Minute).UnixMilli())
		require.NoError(t, err)
		assert.EqualValues(t, 1, taken)
		before(conn)
		_, err = conn.Do("DEL", "lock:a")
		require.NoError(t, err)
	}
	run := func(act func()) verify.Certificate {
		opts := verify.Options{Window: time.Second, Longest: time.Second, Match: []string{"lock:*"}}
		acted := false
		opts.Progress = func(time.Duration, int) {
			if !acted {
				acted = true
				act()
			}
		}
		cert, err := verify.Run(t.Context(), end, opts)
		require.NoError(t, err)
		return cert
	}
	live(c.Owner(protocol.Slot("lock:live")))
	cert := run(func() {})
	require.Equal(t, verify.NoneSeen, cert.Verdict, cert.Why)

	cert = run(func() {
		m := c.Migrate(slot, guest)
		takes(func(conn redis.Conn) { _, _ = conn.Do("ASKING") })
		for _, s := range []*redistest.Server{m.From, guest} {
			s.Do("CLUSTER", "SETSLOT", slot, "STABLE")
		}
	})
	assert.Equal(t, []string{"counters"}, open(cert), "a slot that has no new owner in the end: %s", cert.Why)

	cert = run(func() {
		c.Migrate(slot, guest).Finish()
		takes(func(redis.Conn) {})
		c.Migrate(slot, owner).Finish()
	})
	assert.Equal(t, verify.Inconclusive, cert.Verdict, cert.Why)
	assert.Contains(t, open(cert), "counters")

	gives := func(to *redistest.Server) {
		for _, s := range c.Masters {
			s.Do("CLUSTER", "DELSLOTS", slot)
		}
		to.Do("CLUSTER", "ADDSLOTS", slot)
		c.AwaitOwner(slot, to)
		c.AwaitOK()
	}
	cert = run(func() {
		gives(guest)
		takes(func(redis.Conn) {})
		gives(owner)
	})
	assert.Equal(t, []string{"counters"}, open(cert), "no owner takes a new epoch: %s", cert.Why)

	for _, s := range c.Masters {
		s.Do("ACL", "SETUSER", "default", "-cluster|info")
	}
	cert = run(func() {})
	assert.Equal(t, []string{"counters"}, open(cert), cert.Why)
	assert.Contains(t, cert.Why, "grant +cluster|info")
}
