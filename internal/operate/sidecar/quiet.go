package sidecar

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	linesOf    = 20 // of one message in each spell
	spell      = time.Minute
	longestLog = 256 // bytes of one attribute
)

// Quiet returns a handler that a service cannot flood: of each message it writes 20 lines a minute, and counts the rest in the next line.
// What is long, such as a key, is cut.
func Quiet(next slog.Handler) slog.Handler { return quiet{next, &spells{of: map[string]*spellOf{}}} }

type quiet struct {
	slog.Handler
	spells *spells
}

type spells struct {
	mu sync.Mutex
	of map[string]*spellOf // by the message, which is one of a few
}

type spellOf struct {
	began          time.Time
	lines, leftOut int
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quiet{q.Handler.WithAttrs(attrs), q.spells}
}

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	leftOut, write := q.spells.line(r.Message, r.Time)
	if !write {
		return nil
	}
	line := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if text := a.Value.String(); len(text) > longestLog {
			a.Value = slog.StringValue(text[:longestLog] + "...")
		}
		line.AddAttrs(a)
		return true
	})
	if leftOut > 0 {
		line.AddAttrs(slog.Int("left_out", leftOut))
	}
	return q.Handler.Handle(ctx, line)
}

func (s *spells) line(message string, at time.Time) (leftOut int, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.of[message]
	if now == nil || at.Sub(now.began) >= spell {
		if now != nil {
			leftOut = now.leftOut
		}
		now = &spellOf{began: at}
		s.of[message] = now
	}
	if now.lines++; now.lines > linesOf {
		now.leftOut++
		return 0, false
	}
	return leftOut, true
}
