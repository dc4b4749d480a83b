package lifetime

import (
	"context"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Pooled is the Batcher of a pool that only hands out connections. It takes one for each batch and gives it back
// afterwards: a pool may have no other.
type Pooled struct {
	Pool    lockmigrate.Pool // a topology.Leaving, or one of several servers
	Timeout time.Duration    // the longest wait for one reply
	// Opened, if set, may ask something of each connection before it is used.
	Opened func(conn redis.Conn)
}

// At implements Batcher: which server a connection leads to is the pool's matter.
func (p *Pooled) At(context.Context, string) string { return "" }

// Batch implements Batcher. Scripts go out by digest; what the server has forgotten is sent again.
func (p *Pooled) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	var conn redis.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	var broken error
	for i, c := range commands {
		reply := protocol.Reply{Kind: protocol.Silence}
		for broken == nil {
			if conn == nil {
				if conn, broken = p.Pool.GetContext(ctx); broken != nil {
					break
				}
				if p.Opened != nil {
					p.Opened(conn)
				}
			}
			var err error
			if reply, err = wire.Do(conn, p.Timeout, c); err == nil {
				each(i, reply, nil)
				break
			}
			again := topology.Again(ctx, conn, err)
			if reply.Kind == protocol.Silence || again {
				_ = conn.Close()
				conn = nil
			}
			if again {
				continue // it has not run, and another connection may lead to the right server
			}
			if reply.Kind == protocol.Silence || topology.Busy(reply.Text) { // the others need not wait for the same
				broken = err
				break
			}
			each(i, reply, err)
			break
		}
		if broken != nil {
			each(i, protocol.Reply{Kind: protocol.Silence}, broken)
		}
	}
}
