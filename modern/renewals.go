package modern

import (
	"context"
	"time"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/client/pipeline"
	"github.com/lockmigrate/lockmigrate/internal/client/renewal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// renewals chooses the way that the renewals take. It is the Locker's own line, which nobody but the
// Locker uses, and in which a batch has places that no other command can take.
//
// The line gives a silent connection up after ReplyTimeout. Where that is more than a quarter of the TTL
// there would be no time left for another try, and the renewals have a line of their own, which is less
// patient. And where there is no line, each batch takes a connection of the pool and gives it back.
func (l *Locker) renewals(pool lockmigrate.Pool, own func(patience time.Duration) pipeline.Way) renewal.Batcher {
	patience := min(l.opts.ReplyTimeout, l.opts.TTL/4)
	switch {
	case l.line != nil && patience == l.opts.ReplyTimeout:
		return share(l.line)
	case own != nil:
		return own(patience)
	default:
		return &renewal.Pooled{Pool: pool, Timeout: patience}
	}
}

// shared is a line that others use too: closing it ends the renewals on it, and nothing else.
type shared struct {
	line pipeline.Way
	life context.Context
	end  context.CancelFunc
}

func share(way pipeline.Way) *shared {
	s := &shared{line: way}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Batch implements renewal.Batcher.
func (s *shared) Batch(ctx context.Context, commands []protocol.Command, each func(i int, reply protocol.Reply, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	s.line.Batch(ctx, commands, each)
}

// Close implements renewal.Batcher.
func (s *shared) Close() { s.end() }

// Wait implements renewal.Batcher.
func (s *shared) Wait() {}
