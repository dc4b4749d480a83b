package driver

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/topology"
)

// moving is a cluster of two in memory: "old:1" redirects everything to "new:1", which answers after a round trip.
type moving struct {
	topology.Servers
	sync.Mutex
	master string
	trip   time.Duration
}

func (m *moving) Locate(context.Context, string) (string, error) {
	m.Lock()
	defer m.Unlock()
	return m.master, nil
}

func (m *moving) Moved(_ int, addr string) {
	m.Lock()
	defer m.Unlock()
	m.master = addr
}

func (m *moving) Address(told string) string           { return told }
func (m *moving) Patience() time.Duration              { return time.Second }
func (m *moving) Gone(func(addr string)) (stop func()) { return func() {} }
func (m *moving) DialAddr(_ context.Context, addr string) (redis.Conn, error) {
	return &node{fake: newFake(), addr: addr, trip: m.trip}, nil
}

// node is a server of moving.
type node struct {
	*fake
	addr string
	trip time.Duration
}

func (n *node) Flush() error {
	n.mu.Lock()
	asked := len(n.got) - n.flushed
	n.mu.Unlock()
	time.AfterFunc(n.trip, func() {
		for range asked {
			if n.addr == "old:1" {
				n.replies <- redis.Error(fmt.Sprintf("MOVED %d new:1", protocol.Slot("k")))
			} else {
				n.replies <- "OK"
			}
		}
	})
	return n.fake.Flush()
}

func (n *node) Receive() (any, error) {
	reply, err := n.fake.Receive()
	if _, refused := err.(redis.Error); refused {
		<-n.asked
	}
	return reply, err
}

func (n *node) ReceiveWithTimeout(time.Duration) (any, error) { return n.Receive() }

// TestABatchIsRedirectedAtOnce: after a failover of a cluster the replies of a batch say MOVED. To send one command after the other
// then would take so many round trips, for which the next renewals wait.
func TestABatchIsRedirectedAtOnce(t *testing.T) {
	const trip = 20 * time.Millisecond // one after the other takes six seconds
	servers := &moving{master: "old:1", trip: trip}
	c := NewShared(SharedOptions{Servers: servers, Now: func() protocol.Instant { return protocol.InstantOf(time.Now()) }, ReplyTimeout: time.Minute})
	defer func() { c.Close(); c.Wait() }()
	commands := make([]protocol.Command, 300)
	for i := range commands {
		commands[i] = protocol.Command{Op: protocol.Get, Key: "k"}
	}
	var mu sync.Mutex
	answered := make(map[int]bool)
	start := time.Now()
	c.Batch(t.Context(), commands, func(i int, reply protocol.Reply, err error) {
		mu.Lock()
		defer mu.Unlock()
		assert.NoError(t, err)
		assert.Equal(t, "OK", reply.Text)
		assert.False(t, answered[i])
		answered[i] = true
	})
	assert.Len(t, answered, len(commands))
	assert.Less(t, time.Since(start), 100*trip)
}
