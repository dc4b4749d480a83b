package faults

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
)

// event is one turn, for the linearizability checker.
type event struct {
	key                              string
	fence                            int64
	called, entered, ended, released time.Time
	lost                             bool
}

func (r *referee) note(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, e)
}

// step is an operation on the model: a lock with a fencing counter.
type step struct {
	acquire bool
	fence   int64
}

type state struct {
	held bool
	last int64
}

// lockModel is a lock that one holds at a time, whose fencing tokens only rise. A loss ends a hold like a
// release, at any time until the holder was told.
var lockModel = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) {
		at, do := s.(state), input.(step)
		if do.acquire {
			return !at.held && do.fence > at.last, state{true, do.fence}
		}
		return at.held && at.last == do.fence, state{false, at.last}
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string {
		do := input.(step)
		if do.acquire {
			return fmt.Sprintf("acquire -> fence %d", do.fence)
		}
		return fmt.Sprintf("end of %d", do.fence)
	},
}

// linearizable checks the turns on each key that has fencing tokens, and returns the keys whose history no
// order explains.
func (r *referee) linearizable() (checked int, wrong []string) {
	byKey := map[string][]porcupine.Operation{}
	for i, e := range r.history {
		if e.fence == 0 {
			continue
		}
		end := porcupine.Operation{ClientId: i, Input: step{false, e.fence}, Call: since(e.ended), Return: since(e.released)}
		if e.lost {
			end.Call = since(e.entered)
		}
		byKey[e.key] = append(byKey[e.key],
			porcupine.Operation{ClientId: i, Input: step{true, e.fence}, Call: since(e.called), Return: since(e.entered)}, end)
	}
	for key, ops := range byKey {
		checked += len(ops)
		if porcupine.CheckOperationsTimeout(lockModel, ops, 10*time.Second) == porcupine.Illegal {
			wrong = append(wrong, key)
		}
	}
	return checked, wrong
}

var began = time.Now()

// since is on the monotonic clock.
func since(t time.Time) int64 { return int64(t.Sub(began)) }
