package driver

import (
	"sync"
	"sync/atomic"
	"time"
)

// Background counts what runs for something that is closed one day, in goroutines of its own or of its callers. The zero value is open,
// with nothing in it. It is safe for concurrent use.
//
// It is a sync.WaitGroup that can be refused. A WaitGroup that is waited for while somebody may still call Add on it at zero is misused: the
// new task is missed, or the program ends with "WaitGroup is reused before previous Wait has returned". A Locker that is closed beside an
// Acquire, and a connection that is given up while a caller's context ends, are just that.
//
// A start is one atomic addition, because each command of a busy Locker is counted. One that is refused is counted for a
// moment: Close may wait for that, but never returns too early.
type Background struct {
	state atomic.Int64 // how many run, and closed

	mu    sync.Mutex
	quiet sync.Cond // signalled when the count of a closed group reaches zero
}

const closed = int64(1) << 62

// Begin counts the caller in, until its End. It returns false when the group is closed: nothing may be begun then.
func (b *Background) Begin() bool {
	if b.state.Add(1)&closed != 0 {
		b.End()
		return false
	}
	return true
}

// Extend counts once more, until one more End, for somebody who is counted in: it is not refused, for Close waits for the
// caller.
func (b *Background) Extend() { b.state.Add(1) }

// End counts off what Begin or Extend has counted in. One too many is a fault of the program and panics, as in sync.WaitGroup: Close could
// no longer tell what it waits for.
func (b *Background) End() {
	switch b.state.Add(-1) {
	case -1, closed - 1:
		panic("driver: Background: End without a Begin")
	case closed:
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.quiet.L != nil {
		b.quiet.Broadcast()
	}
}

// Go runs a task on a goroutine of its own. It returns false when the group is closed: the task does not run then, and the
// caller has to say what that leaves undone.
func (b *Background) Go(task func()) bool {
	if !b.Begin() {
		return false
	}
	go b.run(task)
	return true
}

// Fork is Go for somebody who is counted in; as Extend, it is not refused.
func (b *Background) Fork(task func()) {
	b.Extend()
	go b.run(task)
}

// GoOrDo runs a task on a goroutine of its own; on the caller's when the group is closed. It is for what must be done in any
// case and ends at once where the group is closed.
func (b *Background) GoOrDo(task func()) {
	if !b.Go(task) {
		task()
	}
}

// Again runs a task in the group, after pauses that double from 50 ms to 1 s, until it returns true, until is over, or the group is
// closed. Nobody waits for the pauses.
func (b *Background) Again(until time.Time, task func() bool) {
	b.again(until, 50*time.Millisecond, task)
}

func (b *Background) again(until time.Time, pause time.Duration, task func() bool) {
	if time.Until(until) < pause {
		return
	}
	time.AfterFunc(pause, func() {
		b.Go(func() {
			if !task() {
				b.again(until, min(2*pause, time.Second), task)
			}
		})
	})
}

func (b *Background) run(task func()) {
	defer func() {
		if x := recover(); x != nil {
			panic(x) // and no End, as in sync.WaitGroup: Close must not return, and the program exit, before this is told
		}
		b.End()
	}()
	task()
}

// Close refuses every start from now on, and returns when nothing of the group runs any more. It may be called again, and
// by several at once.
func (b *Background) Close() {
	b.state.Or(closed)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quiet.L = &b.mu
	for b.state.Load() != closed {
		b.quiet.Wait()
	}
}
