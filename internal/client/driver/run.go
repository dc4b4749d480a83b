package driver

import (
	"context"
	"errors"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Run is a stretch of a machine's life: commands and replies, until it wants to sleep or is done. All that send commands use it,
// over a pool or over a pipelined connection.
type Run struct {
	Machine protocol.Machine
	Now     func() protocol.Instant
	Sent    bool  // a command was sent already: the outcome is not certain without its reply
	Last    error // the last refusal or I/O error
}

var (
	// ErrNotSent is matched by the error of a command that has certainly not run, and will not.
	ErrNotSent = errors.New("command not sent")
	// ErrPending is the error of a command whose reply is still to come, though its caller's context has ended.
	ErrPending = errors.New("command without a reply yet")
)

// NotSent is an error that matches ErrNotSent, and its cause.
type NotSent struct{ Cause error }

func (e NotSent) Error() string   { return e.Cause.Error() }
func (e NotSent) Unwrap() []error { return []error{ErrNotSent, e.Cause} }

// Advance goes on from the last reply. Exchange sends a command and waits for its reply, a Silence where there is none. When ctx
// ends first, Advance returns its cause: with Failed when nothing was sent, or with Unsure when the run is to be gone on with.
func (r *Run) Advance(ctx context.Context, reply protocol.Reply, exchange func(c protocol.Command) (protocol.Reply, error)) (Outcome, error) {
	if cause := context.Cause(ctx); cause != nil && !r.Sent {
		return Ended(protocol.Failed, cause), cause
	}
	for {
		step := r.Machine.Next(r.Now(), reply)
		if step.Kind != protocol.Send {
			return Rests(step, r.Last), nil
		}
		var err error
		reply, err = exchange(step.Command)
		unsent := err != nil && errors.Is(err, ErrNotSent)
		switch cause := context.Cause(ctx); {
		case err == ErrPending || unsent && r.Sent && cause != nil:
			return Ended(protocol.Unsure, cause), cause
		case unsent && !r.Sent && cause != nil:
			return Ended(protocol.Failed, cause), cause
		case unsent && !r.Sent:
			return Ended(protocol.Failed, err), nil
		case err != nil:
			r.Last = err
		}
		r.Sent = true
	}
}
