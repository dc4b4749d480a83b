package stages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/topology"
)

// Mover is the operator's side of a change of stage: it waits until nobody blocks it, and makes it.
//
// It may die at any moment and be run again. The only thing that it writes is one compare-and-set of
// the record; everything else is reading.
type Mover struct {
	Store *Store
	Look  time.Duration // between two tries while somebody blocks
	Epoch int64         // the epoch to move from; 0: whatever stands now
	Note  string        // what the step rests on, kept in the record

	// Before, if set, has the last word when no member is in the way: an error of it ends the move.
	Before func(ctx context.Context, view View) error
}

// ErrNoNeighbour says that a stage cannot be reached in one step.
var ErrNoNeighbour = errors.New("only a neighbouring stage can be reached in one step")

// ErrUnsure says that a change was sent and has no reply. A look at the record finds out.
var ErrUnsure = errors.New("no reply came: it may be done")

// ErrMade says that a change was made, and that something failed after it.
var ErrMade = errors.New("the change is made; what follows it failed")

// Made marks an error that came after a change. It returns nil for nil.
func Made(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrMade, err)
}

// unsure marks the error of a change that may have been made.
func unsure(err error, execute bool) error {
	var refused redis.Error
	var dial *net.OpError
	if err == nil || !execute || errors.As(err, &refused) || errors.As(err, &dial) && dial.Op == "dial" {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnsure, err)
}

// Run moves to a stage, and tells wait who blocks each time that somebody does. A namespace that is at
// the stage already is left as it is: that is how a command whose reply was lost finishes when it is
// run again.
//
// A deadline of ctx ends the wait between two looks: one that has begun is finished, so that the answer always
// says who was in the way, and it is known of every step whether it was made.
func (m *Mover) Run(ctx context.Context, to Stage, wait func(View, []Blocker)) error {
	epoch := m.Epoch
	look, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel(context.Cause(ctx))
		}
	})()
	var inTheWay []Blocker
	givenUp := func() error {
		return &Waited{Namespace: m.Store.Namespace, To: to, Blockers: inTheWay, Cause: context.Cause(ctx)}
	}
	for {
		view, err := m.Store.Show(look)
		switch {
		case err != nil && ctx.Err() != nil && len(inTheWay) > 0: // interrupted in the midst of a look
			return givenUp()
		case err != nil:
			return err
		}
		switch {
		case view.Record.Stage == to:
			return nil
		case epoch == 0:
			epoch = view.Record.Epoch
		case view.Record.Epoch != epoch:
			return fmt.Errorf("move namespace %s to %v: %w: it is %v, epoch %d", m.Store.Namespace, to, ErrConflict, view.Record.Stage, view.Record.Epoch)
		}
		if d := to - view.Record.Stage; d != 1 && d != -1 {
			return fmt.Errorf("move namespace %s from %v to %v: %w", m.Store.Namespace, view.Record.Stage, to, ErrNoNeighbour)
		}
		if m.Before != nil {
			blockers, err := m.Store.move(look, epoch, to, false, "")
			if err == nil && len(blockers) == 0 {
				err = m.Before(look, view)
			}
			if err != nil && !errors.Is(err, ErrConflict) {
				return err
			}
		}
		blockers, err := m.Store.move(look, epoch, to, true, m.Note)
		if errors.Is(err, ErrConflict) {
			continue // somebody moved it in between: perhaps to where we want it
		}
		if err != nil || len(blockers) == 0 {
			return err
		}
		inTheWay = blockers
		wait(view, blockers)
		if !topology.Sleep(ctx, m.Look) {
			return givenUp()
		}
	}
}

// Follow waits after a move to a stage until every member that lives runs the record, and tells wait who does not yet. A member
// that cannot run it, or is silent, acquires nothing and is not waited for. When ctx ends first the error is a
// *Waited; when somebody else has moved the namespace on meanwhile it is ErrConflict.
func (m *Mover) Follow(ctx context.Context, to Stage, wait func(View)) error {
	look := context.WithoutCancel(ctx)
	for {
		view, err := m.Store.Show(look)
		if err != nil {
			return err
		}
		if r := view.Record; r.Stage != to {
			return fmt.Errorf("namespace %s was moved to %v, and then %w: it is %v, epoch %d", m.Store.Namespace, to, ErrConflict, r.Stage, r.Epoch)
		}
		late, _ := view.ChangingOver()
		if len(late) == 0 {
			return nil
		}
		wait(view)
		if !topology.Sleep(ctx, m.Look) {
			waited := &Waited{Namespace: m.Store.Namespace, To: view.Record.Stage, Cause: context.Cause(ctx)}
			for _, l := range late {
				waited.Blockers = append(waited.Blockers, Blocker{Member: l.ID, Why: "behind", Wait: -1, Stage: l.Stage, Left: l.Left})
			}
			return waited
		}
	}
}

// Waited is the error of a move whose wait was given up; it says who was in the way.
type Waited struct {
	Namespace string
	To        Stage
	Blockers  []Blocker
	Cause     error
}

// Error names the first blocker and counts the others.
func (w *Waited) Error() string {
	text := fmt.Sprintf("move namespace %s to %v: %v: %v", w.Namespace, w.To, w.Cause, w.Blockers[0])
	if n := len(w.Blockers) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// Unwrap gives the context's cause.
func (w *Waited) Unwrap() error { return w.Cause }
