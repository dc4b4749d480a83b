// Package protocol holds the lock protocols as pure step machines.
//
// A machine is told the time and the last reply, and answers with the next step: a command to
// send, a time to sleep, or its verdict. It owns no clock, no connection, no randomness and no
// goroutine. So the same machine runs over a real server (packages legacy, modern and compat), and
// in the simulator and explorer. There time is virtual, and every client has a clock of its own.
//
// Driving a machine is one loop:
//
//	reply := protocol.Reply{}                       // the zero Reply begins
//	for {
//		step := m.Next(clock.now(), reply)
//		switch step.Kind {
//		case protocol.Send:
//			reply = send(step.Command)
//		case protocol.Sleep:
//			reply = sleep(step.Sleep)               // Reply{Kind: Woke}
//		case protocol.Done:
//			return step.Verdict
//		}
//	}
//
// Machines are plain values: copying one forks the run, which is how the explorer branches.
package protocol

import "time"

// Instant is a reading of ONE particular clock, in nanoseconds since the Unix epoch. Readings of
// different clocks are different things; nothing here compares them, with one exception: a value
// that one client wrote on a key and another reads. That is exactly the weakness of the old scheme.
type Instant int64

// InstantOf converts a wall-clock reading.
func InstantOf(t time.Time) Instant { return Instant(t.UnixNano()) }

// Time converts back, in UTC.
func (t Instant) Time() time.Time { return time.Unix(0, int64(t)).UTC() }

// Add returns the instant d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Op names a command, or one of the project's server scripts, by what it does.
type Op uint8

// The commands of the old scheme. Ops of the newer protocols stand beside their machines.
const (
	NoOp       Op = iota
	SetNX         // SETNX key value: 1 set, 0 held
	Get           // GET key: the value or nil
	GetSet        // GETSET key value: the old value or nil
	Del           // DEL key: how many were removed
	Watch         // WATCH key: OK
	Unwatch       // UNWATCH: OK
	Commit        // MULTI, SET key value, EXEC: OK, or nil when the watched key has changed
	CompareDel    // compare_del.lua: DEL key if it still holds value: 1 removed, 0 not
	CompareSet    // compare_set.lua: SET key value if it still holds old, keeping its TTL: 1 set, 0 not
)

// Command is one request to the server. Which fields count depends on Op.
type Command struct {
	Op    Op
	Key   string
	Value string        // what is written, or what the key must still hold
	Old   string        // CompareSet: what the key must still hold
	TTL   time.Duration // whole milliseconds, relative, counted by the server

	Fence    string        // the key of the fencing counter; empty for none
	FenceTTL time.Duration // of that counter
	Queue    string        // the key of the queue
	Channel  string        // Queue, and QueueRelease with an entry: where the waiter listens
	Claim    time.Duration // the same: the TTL of a grant
	Queues   bool          // Take: refuse where the queue's scripts could not run
	QueueTTL time.Duration // Queue: of the queue's key
	Share    time.Duration // Queue, QueueRelease: how long the key is left to clients who only poll, a fifth of the time; 0: never
	Wanted   bool          // QueueRelease: somebody is likely to wait, and is to hear of it before we do

	Guard    string        // the bridge's second key
	Grace    time.Duration // how long a legacy expiry must be over before a takeover, or NoTakeover
	Unit     Unit          // of the legacy expiry that the server reads
	Layout   Layout        // of the same
	Yield    string        // the key with the state of the gaps for old clients; empty: none are left
	Gap      time.Duration // the length of a gap
	Held     time.Duration // BridgeDrop: for how long the lock was held
	Behind   int           // BridgeDrop: how many wait for the key without an entry in Queue, as far as we know
	Breath   time.Duration // BridgeDrop: for how long the guard stays behind; 0: not at all
	Entry    string        // BridgeTake, BridgeDrop: our Entry in Queue; empty for none
	Stood    string        // BridgeTake: the entry that Entry replaces; BridgeDrop: another one of ours
	Hand     bool          // BridgeDrop: the lock may be handed to the first in Queue
	NotAfter Instant       // on the server's clock: the command is refused later than this; 0: no bound

	Record  string       // the key of the sidecars' record
	Sidecar *SidecarCall // of a sidecar's ops

	Count int64 // WaitReplicas: how many of them
}

// ReplyKind says what came back.
type ReplyKind uint8

const (
	Begin   ReplyKind = iota // the zero Reply: nothing was asked yet
	Nil                      // the server has no such key
	Integer                  // Int holds it
	Text                     // Text holds it; a status such as OK counts
	Fault                    // the server refused: WRONGTYPE, READONLY, NOPERM ...; Text holds its message
	Silence                  // no reply: the command may have run, may run yet, or never will
	Woke                     // a sleep is over
)

// Reply is the answer to the last step.
type Reply struct {
	Kind ReplyKind
	Int  int64
	Int2 int64 // further integers of a script's reply
	Int3 int64
	Int4 int64
	Text string
	Over bool // of a Silence: the server ended the connection, so what has not run by now never will
}

// StepKind says what a machine wants next.
type StepKind uint8

const (
	Send  StepKind = iota + 1 // send Step.Command, come back with its reply
	Sleep                     // let Step.Sleep pass, come back with Woke
	Done                      // finished: Step.Verdict
)

// Step is what a machine wants next.
type Step struct {
	Kind    StepKind
	Verdict Verdict
	Command Command
	Sleep   time.Duration
}

// Verdict is how a machine ended.
type Verdict uint8

const (
	Pending   Verdict = iota
	Acquired          // the lock is ours
	Busy              // another holds it, and the patience is used up
	Foreign           // the key holds a value that this dialect cannot read: treated as held
	Threw             // the old code would have thrown here (faithful machines only)
	Released          // our value is gone from the key, by our doing
	NotOurs           // nothing was deleted: the key is no longer, or may no longer be, ours
	Renewed           // the lease was extended
	Lost              // we held it and do not any more
	Failed            // the server refused, or a question that changes nothing stayed without an answer
	Unsure            // a reply is missing and nothing that we may ask can settle the matter
	Repaired          // the lease was extended; one of the lock's keys had been deleted and is set again
	Displaced         // the guard is ours, but another value stands on the key: lost
	Ghost             // an expired legacy value that this machine may not take over
)

// Machine is one run of one protocol operation.
type Machine interface {
	// Next takes the reading of the client's own clock and the reply to the last step.
	Next(now Instant, reply Reply) Step
}

func send(c Command) Step        { return Step{Kind: Send, Command: c} }
func sleep(d time.Duration) Step { return Step{Kind: Sleep, Sleep: d} }
func done(v Verdict) Step        { return Step{Kind: Done, Verdict: v} }

func (r Reply) is(n int64) bool { return r.Kind == Integer && r.Int == n }
