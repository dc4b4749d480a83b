package renewal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// Pooled is the Batcher of a pool that only hands out connections: it keeps one of them.
type Pooled struct {
	Pool    lockmigrate.Pool
	Timeout time.Duration // the longest wait for one reply

	mu     sync.Mutex
	conn   redis.Conn
	closed bool
}

// Batch implements Batcher. Scripts go out by digest; what the server has forgotten is sent again.
func (p *Pooled) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil && !p.closed {
		conn, err := p.Pool.GetContext(ctx)
		if err != nil {
			if conn != nil {
				_ = conn.Close()
			}
			for i := range commands {
				each(i, protocol.Reply{Kind: protocol.Silence}, err)
			}
			return
		}
		p.conn = conn
	}
	for i, c := range commands {
		if p.conn == nil {
			each(i, protocol.Reply{Kind: protocol.Silence}, errors.New("the connection for renewals broke"))
			continue
		}
		reply, err := wire.Do(p.conn, p.Timeout, c)
		if reply.Kind == protocol.Silence {
			_ = p.conn.Close()
			p.conn = nil
		}
		each(i, reply, err)
	}
}

// Close gives the connection back.
func (p *Pooled) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// Wait implements Batcher.
func (p *Pooled) Wait() {}
