// Package explore runs every interleaving of a few lock clients, on the real protocol machines, and
// either proves a claim within the model's bounds or gives the shortest run that refutes it.
//
// # The model
//
// Time is a counter of ticks. A client's command is computed at one moment and runs at the server at
// the same or a later one, at once with its reply; between any two steps any other client may do
// any of its own. A tick passes when every client is within its bounds: no command is older than its
// delay, no holder stays past what the claim assumes. So "a command takes at most one tick" and "work
// never outlasts the lease" are facts of a model, and leaving one out is how a claim is broken.
//
// # The search
//
// Breadth first, so the first violation is a shortest one, and with every state visited once. A state
// is a tick, a server and one local state per client, each of them a number in a table of its own:
// equal states are found exactly, not by a hash that might collide, and each machine is asked only
// once what it does in a given local state on a given reply. It is pure, so once is enough.
package explore

import (
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Ticks counts the model's time.
type Ticks = int

// Unbounded is a delay without end.
const Unbounded Ticks = -1

// Epoch is the wall clock of the server and of a perfect client at tick 0.
const Epoch = protocol.Instant(1_700_000_000 * int64(time.Second))

// Model is a small world to be explored whole.
type Model struct {
	Clients []Client
	Tick    time.Duration // how long a tick is: at least the coarsest unit on the keys
	Horizon Ticks         // the last tick
	Opening []model.Entry
	// Overrides replaces server operations, for planted bugs.
	Overrides map[protocol.Op]model.Operation

	// NoStats makes the server refuse INFO.
	NoStats bool
	// Silences is how many replies may fail to come, in the whole run. The command may have run, may
	// run later, or never.
	Silences int
	// Failovers is how many times the server may be replaced by its replica, which catches up whenever
	// it likes.
	Failovers int
	// Messages makes the server send what its scripts publish. A message comes whenever it likes, as often as it
	// likes, or never, while its waiter still waits; and with each command the worst set of clients,
	// living, leaving or dead, counts as listening.
	Messages bool
	// Overheard lets messages come to clients that the server did not count, as those do that listen at a replica.
	Overheard bool
	// AtOnce is an operator who waits for nobody: a correction counts as in effect as soon as it is written, and a stage moves at any time (an ablation).
	AtOnce bool
	// Record is what the members follow; nil: nobody is one.
	Record *Record
	// Handover is what those with a New follow.
	Handover *Handover
	Property Property
}

// Client is one client and what it may do.
type Client struct {
	model.Member
	Kind  string // its scheme; handover is a member of one, with two locks
	Ahead Ticks  // its wall clock against the server's
	Turns int    // how often it may want the lock
	From  Ticks  // it does not want it before

	Delay      Ticks                 // the longest time between computing a command and its running
	DelayOf    map[protocol.Op]Ticks // ... of single commands
	ReplyLate  Ticks                 // the longest time between a command's running and its reply
	Overrun    Ticks                 // how long after the lease a holder may still begin its release; negative: before its end
	StaleDel   bool                  // the commands of a release may run after the lease, whatever Delay says
	Crash      bool                  // it may die while it holds the lock
	DiesInLine bool                  // it may die while it waits
	Cancels    bool                  // it may give its wait up
	Restless   bool                  // anything may wake it, as client tracking does
	Punctual   bool                  // it wakes up in the tick in which a sleep is over; otherwise whenever it likes after that
	StepBy     Ticks                 // its wall clock may be stepped once, by so much

	New       *model.Member // the lock that it is to have in place of Member, which is its Old, in a Handover
	Unchecked bool          // of a Handover: what was acquired is handed out whatever the record and the lease are by then (an ablation)
	Outlives  bool          // ... its holder goes on after the member's lease (an ablation)
	Ignores   bool          // ... its holder at stage both goes on after Old is lost (an ablation)
	Omits     bool          // ... its reports leave out attempts that are under way (an ablation)

	Corrected *model.Member // what it is once it has heard of the record's correction; nil: it is no member
	AsTaken   bool          // a lock is renewed as it was taken, whatever the record says by then (an ablation)
	InTime    bool          // it reports before its lease is over
	Hasty     bool          // it says that it runs the correction while an attempt from before is under way (an ablation)
	After     bool          // it does not want the lock before the correction is in effect
	Before    bool          // ... after the correction, which is not made while it may be at work
}

// Property is what must never be seen.
type Property struct {
	// Pairs are the schemes that must exclude each other; none means all.
	Pairs []Pair
	// Tolerate is for how many ticks an overlap may last before it counts.
	Tolerate Ticks
	// Intruder, with Tolerate, is the scheme of the later of the two.
	Intruder model.Scheme
	// Fencing demands that fencing numbers grow from holder to holder, of those that ask for them.
	Fencing bool
	// Gone demands that nothing of a client stands on the server any more when its NotAfter is over by more than a
	// Lease: what a change of the stage relies on.
	Gone bool
	// Idle is for how many ticks nobody may be inside although somebody waits; 0 does not ask.
	Idle Ticks
}

// Pair is two schemes, in any order.
type Pair [2]model.Scheme

func (p *Property) covers(a, b model.Scheme) bool {
	return len(p.Pairs) == 0 || slices.Contains(p.Pairs, Pair{a, b}) || slices.Contains(p.Pairs, Pair{b, a})
}

func (c *Client) delay(op protocol.Op) Ticks {
	if by, single := c.DelayOf[op]; single {
		return by
	}
	return c.Delay
}

// counts tells that it matters how often the server has run SETNX: some client leaves gaps, and the server tells.
func (m *Model) counts() bool {
	return !m.NoStats && slices.ContainsFunc(m.Clients, func(c Client) bool { return c.Yield > 0 })
}

func (m *Model) serverClock(tick Ticks) protocol.Instant {
	return Epoch.Add(time.Duration(tick) * m.Tick)
}
