package lockmigrate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

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
