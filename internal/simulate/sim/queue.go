package sim

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// event is one thing that will happen. Events are small values in one heap: no pointers, nothing to
// collect.
type event struct {
	at     protocol.Instant
	order  uint64 // of scheduling: what decides between equal times
	stamp  uint32 // of the client's process or hold: an event of an earlier one is void
	flight int32  // the command concerned
	client int32
	kind   eventKind
}

type eventKind uint8

const (
	arrives    eventKind = iota // a command at the server
	answers                     // a reply at the client
	turnBegins                  // the client starts to want the lock
	wakes                       // the machine's sleep is over
	workEnds                    // the critical section is over
	renewalDue
	beliefEnds  // the holder's own deadline
	told        // a message from the server's publish and subscribe
	faultDue    // flight is the index of the fault
	replicaSees // ... of the failover to a replica that has seen everything until now
)

// queue is a binary heap ordered by time, then by order of scheduling.
type queue []event

func (e *event) before(f *event) bool {
	return e.at < f.at || e.at == f.at && e.order < f.order
}

func (q *queue) push(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
	*q = h
}

func (q *queue) pop() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
