package modern

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/client/driver"
)

// native finds out, once for each Locker, whether the server has a compare-and-delete command of its
// own: DELEX (Redis 8.4) or DELIFEQ (Valkey). The question is put in the background by the first
// release, so no lock waits for it; any answer but a clear yes means the script.
type native struct {
	state atomic.Uint32
}

const (
	nativeUnknown uint32 = iota
	nativeAsking
	nativeNone
	nativeDelex
	nativeDelifeq
)

// command returns the command's name, empty where the script is to be used.
func (n *native) command(l *Locker) string {
	switch n.state.Load() {
	case nativeUnknown:
		if n.state.CompareAndSwap(nativeUnknown, nativeAsking) {
			l.background.Go(func() { n.state.Store(l.probe()) }) // a closed Locker goes on without
		}
		return ""
	case nativeDelex:
		return "DELEX"
	case nativeDelifeq:
		return "DELIFEQ"
	default:
		return ""
	}
}

// refused gives the command up when the server does not let us use it.
func (n *native) refused(err error) bool {
	if !driver.Refused(err) {
		return false
	}
	n.state.Store(nativeNone)
	return true
}

func (l *Locker) probe() uint32 {
	ctx, cancel := context.WithTimeout(context.Background(), l.opts.ReplyTimeout)
	defer cancel()
	conn, err := l.pool.Pool.GetContext(ctx)
	if err != nil {
		return nativeNone
	}
	defer conn.Close()
	for _, known := range []struct {
		state uint32
		name  string
	}{{nativeDelex, "DELEX"}, {nativeDelifeq, "DELIFEQ"}} {
		// The reply is a list of one entry: nil, or in some versions an empty list, for an unknown command.
		reply, err := redis.Values(redis.DoWithTimeout(conn, time.Until(deadline(ctx)), "COMMAND", "INFO", known.name))
		if err != nil || len(reply) != 1 {
			continue
		}
		if about, ok := reply[0].([]any); ok && len(about) > 0 {
			return known.state
		}
	}
	return nativeNone
}

func deadline(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}
