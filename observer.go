package lockmigrate

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Observer is told what happens to locks. It is called on the goroutine that it happens on. It must be quick, must not block
// and must not call back into the lock; any goroutine may call it. For several, write a function that calls each.
type Observer func(Event)

// EventKind says what happened.
type EventKind string

const (
	EventAcquired EventKind = "acquired" // How; Took: from the call to the lock
	EventWaited   EventKind = "waited"   // a wait ended without the lock; Took: how long it was; Err: why
	EventReleased EventKind = "released" // Held: for how long
	EventRenewed  EventKind = "renewed"  // the lease was extended; Took: the round trip
	EventLost     EventKind = "lost"     // Held: for how long; Err: an error that matches ErrLost
	EventFailed   EventKind = "failed"   // a command failed, or its outcome is unknown; Op and Err say which and why
	EventMode     EventKind = "mode"     // what wakes this process's waiters has changed; Mode; Err: why it is not better
	EventStage    EventKind = "stage"    // package compat: Stage and Epoch that this process runs; Err: why it runs none
)

// Stage is a way to hold a key that a fleet goes through. Neighbours exclude each other; legacy and modern are never both in
// use in one namespace.
type Stage int

const (
	// StageLegacy is the old SETNX/GETSET lock of package legacy.
	StageLegacy Stage = iota

	// StageBridge holds a key so that old and new clients both respect it: a value that is a far-future expiry to the old ones and
	// a token to the new ones; a TTL; a guard.
	StageBridge

	// StageModern is a token with a TTL. It takes nothing over from legacy clients. It keeps the guard, so that a stale DEL costs
	// nothing until the bridge is gone too.
	StageModern
)

// String returns the stage's name.
func (s Stage) String() string {
	names := [...]string{"legacy", "bridge", "modern"}
	if s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("stage(%d)", int(s))
}

// Event is one thing that happened to a lock.
type Event struct {
	Kind  EventKind
	Op    string // acquire, renew, release ...
	Key   string
	Fence int64         // EventAcquired: the fencing token, 0 for none
	How   string        // EventAcquired: "try" at the first try, "wait" after a wait, "handed" by the holder before
	Took  time.Duration // how long the operation took
	Held  time.Duration // EventReleased, EventLost: how long the lock was ours
	Stage Stage         // EventStage
	Epoch int64         // EventStage: how often the stage has changed
	Err   error
	Note  string

	// Mode is what wakes those who wait in this process. idle: nobody waits, and nothing is connected for it. polling: timers alone;
	// the server, or the way to it, offers nothing else. messages: pub/sub, for releases of this library's locks; a timer for others'.
	// tracking: pub/sub, and client tracking for releases by anybody.
	Mode string
}

// LogTo returns an observer that writes to a logger: losses and failures as warnings, changes of mode
// as information, everything else for debugging. It looks at the level before it builds anything.
func LogTo(logger *slog.Logger) Observer {
	return func(e Event) { log(logger, e) }
}

func log(logger *slog.Logger, e Event) {
	level := slog.LevelDebug
	switch e.Kind {
	case EventLost, EventFailed:
		level = slog.LevelWarn
	case EventMode, EventStage:
		level = slog.LevelInfo
	}
	ctx := context.Background()
	if !logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 8)
	if e.Op != "" {
		attrs = append(attrs, slog.String("op", e.Op))
	}
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	if e.Fence != 0 {
		attrs = append(attrs, slog.Int64("fence", e.Fence))
	}
	if e.How != "" {
		attrs = append(attrs, slog.String("how", e.How))
	}
	if e.Took != 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Held != 0 {
		attrs = append(attrs, slog.Duration("held", e.Held))
	}
	switch {
	case e.Kind == EventMode:
		attrs = append(attrs, slog.String("mode", e.Mode))
	case e.Kind == EventStage && e.Err == nil:
		attrs = append(attrs, slog.String("stage", e.Stage.String()), slog.Int64("epoch", e.Epoch))
	}
	if e.Note != "" {
		attrs = append(attrs, slog.String("note", e.Note))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	logger.LogAttrs(ctx, level, "lock "+string(e.Kind), attrs...)
}
