// Package lockmigrate is the vocabulary that the lock packages share: what a lock is, what can go wrong with it, who is told, and
// where connections come from.
//
// The locks themselves are in three packages of one shape:
//
//   - legacy: the old SETNX/GETSET lock whose value is its expiry, as existing Java and Python
//     holders speak it;
//   - modern: token and TTL, the lock to move to;
//   - compat: the bridge that both kinds respect, and the stages in which a fleet moves over.
//
// The command lockmigrate is the operator's side of such a move.
package lockmigrate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Locker takes locks on keys. New of each lock package returns one, so a service keeps any kind in one variable: to change the kind it
// changes one line. It is safe for concurrent use. The package documentation of each kind has its guarantees. What the kinds add:
//
//   - legacy: nothing renews a lock but Lock.Renew. Acquire looks again each Options.Poll.
//   - modern: locks are renewed while they are held. Waiters get a key in the order in which they came. modern.WithOwner makes it reentrant.
//   - modern/redisson: renewed and reentrant too; waiters have no order.
//   - modern/quorum: renewed; waiters poll.
//   - compat: renewed. Each attempt is made in the stage that stands at the time. compat.Locker tells which one that is, and
//     whether the Locker can acquire.
type Locker interface {
	// TryAcquire makes one attempt. ErrNotAcquired means that another client holds the lock.
	TryAcquire(ctx context.Context, key string) (Lock, error)

	// Acquire waits until the lock is ours, Options.Wait is over or ctx ends; the last two are ErrNotAcquired. With modern and
	// compat a server that is away or takes no writes does not end a wait. A failure that the first attempt meets is its error.
	Acquire(ctx context.Context, key string) (Lock, error)

	// Do holds the lock while it runs work. The context of the work ends when ctx or the lease does. The lock is given back on
	// every way out, panics included. The error is work's own; without one, it is that of the release. If the lock was lost,
	// the error matches ErrLost whatever work returned: the work may have overlapped another holder's. When ctx is over, Do
	// returns within 250 ms of the end of work, whatever the server does.
	Do(ctx context.Context, key string, work func(ctx context.Context) error) error

	// Close ends the renewals, closes the Locker's own connections, and returns when nothing of it runs any more. Release locks
	// first. Those that are held are lost to their holders at once; those of package legacy when their leases end. On the
	// server they stay until their leases end. The error says how many they are. Callers who still wait get an error. What
	// an attempt may have left on the server is told to the observer as ErrUnknownOutcome.
	Close() error
}

// Lock is a lock that we hold, or held: what every Locker returns. So code that works under a lock need not know its
// kind. Its methods may be called by any goroutine.
type Lock interface {
	// Key returns the lock's key.
	Key() string

	// Token returns what we wrote on the key: the value that makes the lock ours there. In stage legacy it is the value that was
	// confirmed last; others may write the same.
	Token() string

	// Fence returns the fencing token: larger than every earlier holder's. With it a store can refuse the writes of a holder that was
	// overtaken. That holds while the server keeps the counter; docs/guarantees.md says what holds when it has lost it. It is 0
	// without Options.FenceTTL, in stage legacy, and where the kind of lock draws none.
	Fence() int64

	// Stage returns in which way the key is held: as old clients hold it, as the bridge does, or by a token with a TTL.
	// A lock that outlives a stage change is renewed and released in the way it was taken.
	Stage() Stage

	// Expiry returns until when the lock is certainly ours if no renewal succeeds any more. It is a deadline of this process's
	// monotonic clock, counted from before the last successful command was sent.
	Expiry() time.Time

	// Context returns a context with the values of the acquiring context. It ends when the lock is lost, at the latest at Expiry:
	// its cause matches ErrLost. At a release it ends with ErrReleased. A release that failed changes nothing about that.
	Context() context.Context

	// Renew extends the lease to its full length from now. Lockers that renew by themselves do not need it: call it to be sure
	// before a step that must not be done twice. ErrLost means that the lock is not ours any more, or that the reply came after
	// Expiry. ErrReleased means that Release was called. After any other error it is held as before, until its Expiry.
	Renew(ctx context.Context) error

	// Release gives the lock back. ErrLost means that it was lost before; what still is ours, such as the guard of a displaced
	// holder, is given back nevertheless. ErrUnknownOutcome means that no reply came: the key may stay taken until the time that
	// the error tells. The renewals end with the call in any case.
	//
	// After another error than ErrLost the Locker tries again in the background until Expiry. It pauses for 50 ms to 1 s: a server
	// that refuses now (READONLY, NOPERM, OOM, LOADING) may run it later. Release may be called again too: the first call after the
	// lock was given back returns nil. What cannot be released ends with the lease, and so does the holder's context.
	//
	// When ctx ends before the reply, or has ended before, the release goes on in the background.
	Release(ctx context.Context) error
}

// What can go wrong with a lock. Every error of the lock packages matches exactly one of these under errors.Is; or it is the error
// behind it, of the connection, the server or the caller's context. A wait that was cancelled matches both ErrNotAcquired and the
// context's cause.
var (
	// ErrNotAcquired: another client holds the lock, or may. Nothing of ours is on the key.
	ErrNotAcquired = errors.New("lock not acquired")

	// ErrLost: we held the lock and do not any more, or can no longer be sure that we do. It is the
	// cause of a holder's context when its lease ends under it.
	ErrLost = errors.New("lock lost")

	// ErrUnknownOutcome: a command may have run, and nothing that may be asked settles it. The key
	// may stay taken until Error.Until.
	ErrUnknownOutcome = errors.New("lock outcome unknown")

	// ErrForeignFormat: the key holds a value, or a type, that this lock's dialect cannot read. It
	// counts as held and is never taken over.
	ErrForeignFormat = errors.New("foreign value on the lock key")

	// ErrStage: the namespace does not allow the operation: its stage, its options, or because there is no such namespace.
	ErrStage = errors.New("the namespace does not allow it")

	// ErrReleased: the lock was released before.
	ErrReleased = errors.New("lock already released")
)

// Reason says why a lock was lost. Each Error that matches ErrLost has one.
type Reason string

const (
	// ReasonDeadline: the lease ended. No renewal and no release was confirmed in time, or nobody renewed
	// the lock. Error.Cause is the error of the last command that failed, nil if none did.
	ReasonDeadline Reason = "deadline"

	// ReasonMaxHold: the lock was held for longer than Options.MaxHold.
	ReasonMaxHold Reason = "max-hold"

	// ReasonTaken: the server says that the key is not ours any more.
	ReasonTaken Reason = "taken"

	// ReasonDisplaced: another client's value stands on the key while our guard is still there.
	// Error.Value is that value.
	ReasonDisplaced Reason = "displaced"

	// ReasonClosed: the Locker was closed while the lock was held.
	ReasonClosed Reason = "closed"
)

// Error says which operation failed on which key, and what was seen.
type Error struct {
	Op     string    // acquire, renew, release ...
	Key    string    // the lock's key
	Kind   error     // one of the errors above; nil for a plain failure of connection or server
	Reason Reason    // why the lock was lost; empty unless Kind is ErrLost
	Cause  error     // what stands behind it: the context's cause, the server's words, an I/O error
	Value  string    // the foreign value that was seen, if that is what this is about
	Until  time.Time // when an unknown outcome has passed at the latest; zero if it is not known
	Note   string    // what happened, or what to do, in a few words
}

// Error writes everything on one line; keys and values are quoted and cut to a readable length.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: ", e.Op, quote(e.Key))
	switch {
	case e.Kind != nil && e.Cause != nil:
		fmt.Fprintf(&b, "%v: %s", e.Kind, oneLine(e.Cause))
	case e.Kind != nil:
		b.WriteString(e.Kind.Error())
	case e.Cause != nil:
		b.WriteString(oneLine(e.Cause))
	default:
		b.WriteString("failed")
	}
	if errors.Is(e.Kind, ErrForeignFormat) {
		fmt.Fprintf(&b, ": %s", quote(e.Value))
	}
	if !e.Until.IsZero() {
		fmt.Fprintf(&b, " (the key may stay taken until %s)", e.Until.UTC().Format(time.RFC3339Nano))
	}
	if e.Note != "" {
		fmt.Fprintf(&b, " (%s)", e.Note)
	}
	return b.String()
}

// oneLine is the text of an error whose causes may have been joined, each on a line of its own.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// Unwrap gives both the kind and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	var wrapped []error
	if e.Kind != nil {
		wrapped = append(wrapped, e.Kind)
	}
	if e.Cause != nil {
		wrapped = append(wrapped, e.Cause)
	}
	return wrapped
}

// quoteLimit keeps a hostile key or value from filling a log line.
const quoteLimit = 120

// quote makes a key or value of any bytes safe to print on one line of a log or terminal.
func quote(s string) string {
	if len(s) > quoteLimit {
		return strconv.Quote(s[:quoteLimit]) + fmt.Sprintf("... (%d bytes)", len(s))
	}
	return strconv.Quote(s)
}

// Pool hands out connections. *redis.Pool is one; so is anything else with its GetContext that is a Dialer too.
//
// A lock takes a connection for the commands of one attempt and gives it back before it sleeps. So a waiting lock never holds one.
// GetContext must honour its context while it dials and while it waits for a free connection. The context may end as soon as it has returned.
//
// For more than one server there are cluster.Pool and sentinel.Pool, or a type that embeds one. Another pool over several servers is
// not enough: the locks would not know which of its errors mean that a command has not run.
type Pool interface {
	GetContext(ctx context.Context) (redis.Conn, error)
}

// Dialer lets locks make connections of their own beside those of the pool: one for commands and renewals, two for waiting on each
// server, and one where a server refuses as a demoted master does. They must be ordinary connections in RESP2. A *redis.Pool is one, by its
// Dial or DialContext. A Pool that wraps another, as for tracing, needs this method; New refuses it otherwise.
type Dialer interface {
	Dial(ctx context.Context) (redis.Conn, error)
}

// Observer is told what happens to locks. It is called on the goroutine that it happens on. It must be quick, must not block
// and must not call a Lock or a Locker: Close would wait for its caller. Any goroutine may call it. For several, write a function that calls each.
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

// The stages of package handover. Neighbours exclude each other; old and new are never both in use in one namespace.
const (
	StageOld  Stage = iota + 10 // the lock that the fleet moves from
	StageBoth                   // that one, and then the new one
	StageNew                    // the lock that the fleet moves to
)

// String returns the stage's name.
func (s Stage) String() string {
	switch s {
	case StageLegacy:
		return "legacy"
	case StageBridge:
		return "bridge"
	case StageModern:
		return "modern"
	case StageOld:
		return "old"
	case StageBoth:
		return "both"
	case StageNew:
		return "new"
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
	add := func(there bool, name string, value any) {
		if there {
			attrs = append(attrs, slog.Any(name, value))
		}
	}
	add(e.Op != "", "op", e.Op)
	add(e.Key != "", "key", e.Key)
	add(e.Fence != 0, "fence", e.Fence)
	add(e.How != "", "how", e.How)
	add(e.Took != 0, "took", e.Took)
	add(e.Held != 0, "held", e.Held)
	runs := e.Kind == EventStage && e.Err == nil
	add(e.Kind == EventMode, "mode", e.Mode)
	add(runs, "stage", e.Stage.String())
	add(runs, "epoch", e.Epoch)
	add(e.Note != "", "note", e.Note)
	add(e.Err != nil, "err", e.Err)
	logger.LogAttrs(ctx, level, "lock "+string(e.Kind), attrs...)
}
