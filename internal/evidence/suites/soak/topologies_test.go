package soak

import (
	"fmt"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

func TestClusterStartsMigratesAndFailsOver(t *testing.T) {
	began := time.Now()
	c := redistest.NewCluster(t, 3, 1)
	t.Logf("started in %v", time.Since(began))
	slot := 12182 // of "foo"
	owner := c.Owner(slot)
	owner.Do("SET", "foo", "bar")
	m := c.Migrate(slot, c.Masters[0])
	m.Finish()
	assert.Equal(t, "bar", c.Masters[0].Value("foo"))
	assert.Equal(t, c.Masters[0], c.Owner(slot))
	began = time.Now()
	c.Masters[0].Kill()
	c.AwaitMaster(c.Replicas[0][0])
	t.Logf("failed over in %v", time.Since(began))
	c.AwaitOK()
	assert.Equal(t, "bar", c.Replicas[0][0].Value("foo"))
	c.Masters[0].Start()
	c.AwaitOK()
}

func TestSentinelsFailOver(t *testing.T) {
	began := time.Now()
	g := redistest.NewSentinels(t, 1, 3)
	t.Logf("started in %v", time.Since(began))
	before := g.Master()
	began = time.Now()
	before.Kill()
	after := g.AwaitFailover(before)
	t.Logf("failed over in %v", time.Since(began))
	after.Do("SET", "k", "v")
}

func TestReplicaBehindAHeldLinkHasSeenNothing(t *testing.T) {
	r := redistest.NewReplicated(t)
	r.Master.Do("SET", "a", "1")
	r.AwaitInStep(t)
	r.Link.Partition()
	r.Master.Do("SET", "b", "1")
	r.Promote()
	assert.Equal(t, "1", r.Replica.Value("a"))
	assert.Empty(t, r.Replica.Value("b"))
}

func TestTLSServer(t *testing.T) {
	s := redistest.TLS(t, redistest.NewCertificates(t))
	s.Do("SET", "k", "v")
	assert.Equal(t, "v", s.Value("k"))
}

// Sentinels that were starved of the processor when the master died, and saw late that it had, replace it all the same.
func TestStarvedSentinels(t *testing.T) {
	t.Parallel()
	g := redistest.NewSentinels(t, 1, 3)
	before := g.Master()
	var thaw []func()
	for _, s := range g.Sentinels {
		thaw = append(thaw, s.Freeze())
	}
	before.Kill()
	time.Sleep(12 * redistest.DownAfter) // the subject: longer than a replica may have been without its master before they see it
	for _, f := range thaw {
		f()
	}
	if now := g.AwaitFailover(before); now != g.Servers[1] {
		t.Errorf("%s is the master, not the replica", now.Addr)
	}
	for _, s := range g.Sentinels {
		fields, err := redis.StringMap(s.Try("SENTINEL", "MASTER", g.Name))
		assert.NoError(t, err)
		assert.Equal(t, fmt.Sprint(redistest.DownAfter.Milliseconds()), fields["down-after-milliseconds"])
	}
}
