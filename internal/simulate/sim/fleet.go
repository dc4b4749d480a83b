package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Fleet is everything about a run but its seed.
type Fleet struct {
	Clients []Client
	Network Network
	Server  Server
	Until   time.Duration // the run's length
	Faults  []Fault       // in order of time
	Opening []model.Entry
	// Stop ends a run at its first overlap.
	Stop bool
	// Masters is over how many masters of a cluster the keys are spread by their slots; 0 is one. Each has its own
	// connections, and a client with keys on several works on each of them as a process with a thread for each does: with
	// one clock, and the same pauses and crashes everywhere. Faults of the server befall all masters. With a Plan it is 0.
	Masters int
	// Plan replaces every random decision.
	Plan *Plan
}

// Client is one member of the fleet, its clock and its habits.
type Client struct {
	model.Member
	Offset   time.Duration // of its wall clock at the start
	DriftPPM int64
	First    Distribution // when its first turn begins
	Think    Distribution // between two turns
	Hold     Distribution // how long the work takes
	Overrun  PPM          // chance that the work takes OverrunBy more
	OverBy   Distribution
	// FirstHold, if set, is how long the work of the first turn takes: what follows from one long hold is seen so.
	FirstHold Distribution
	Dies      PPM // chance that the process dies inside, at any time of its work; it restarts as Chaos.Restart says
	Turns     int // 0 is without end
	Chaos     Chaos
	// Keys, if set, are what the client works on instead of Member.Key: each turn draws one.
	Keys []KeySet
}

// KeySet is Count keys of one kind: Prefix and a number from 0. Clients that name the same Prefix share its keys. Count 0 is one key, Prefix.
type KeySet struct {
	Prefix string
	Count  int
	Weight uint32 // how often a key of this set is drawn, beside those of the client's other sets; 0 is 1
}

// Chaos is what befalls a client at random; a zero Every is never.
type Chaos struct {
	PauseEvery, CrashEvery, StepEvery Distribution
	Pause, Restart, Step              Distribution
}

// Network is the way between the clients and the server. The two directions are drawn apart.
type Network struct {
	Request, Reply Distribution
	LoseRequest    PPM           // the command never arrives
	LoseReply      PPM           // the command runs, its reply is lost
	Repeat         PPM           // the command arrives a second time (a client that resends), a Request delay later
	RepeatReply    PPM           // the reply comes twice; the client must not take it for another's
	LoseMessage    PPM           // a grant or an invalidation never comes; one that comes takes as long as a reply
	Timeout        time.Duration // after which a client gives up waiting for a reply
}

// Server is the server's clock, and how often its replica takes over, as sentinels or a cluster have it. Each master fails by itself.
type Server struct {
	Offset   time.Duration
	DriftPPM int64
	// FailoverEvery is the time between two failovers of one master; zero is never. For Outage it answers nothing, and no
	// command runs. The replica that takes over is Behind what the master had by then: those writes are lost.
	FailoverEvery, Outage, Behind Distribution
}

// Fault is something that happens to a client or to the server at a set time.
type Fault struct {
	At     protocol.Instant
	Kind   FaultKind
	Client int           // -1 is the server
	By     time.Duration // how long, or how far

	replica int // Failover: where in the world's replicas the one begins that takes over
}

// FaultKind names a fault.
type FaultKind uint8

const (
	StepClock    FaultKind = iota // the wall clock jumps
	SlewClock                     // the wall clock is slewed
	Pause                         // the process stops, and resumes By later
	Crash                         // the process dies; it restarts By later, or never when By is 0
	RestartEmpty                  // the server restarts without its data
	Failover                      // the server is replaced by its replica, which is By behind
	DriftClock                    // the clock's rate becomes By ppm (in nanoseconds: 200ns is 200 ppm)
	Outage                        // the server answers nothing for By, and runs no command
)

// faultKinds has each kind's verb in a scenario, what it says in a story, and whom it can befall.
var faultKinds = [...]struct {
	verb, says     string
	client, server bool
}{
	StepClock:    {"steps", "its clock is stepped by BY", true, true},
	SlewClock:    {"slews", "its clock begins to be slewed by BY", true, true},
	Pause:        {"pauses", "is paused for BY", true, false},
	Crash:        {"crashes", "crashes, and restarts BY later", true, false},
	RestartEmpty: {"empties", "restarts without its data", false, true},
	Failover:     {"fails-over", "fails over to a replica that is BY behind", false, true},
	DriftClock:   {"drifts", "its clock begins to drift by BY", true, true},
	Outage:       {"stops", "answers nothing for BY", false, true},
}

// Plan is every decision of a run, written down.
type Plan struct {
	Turns   []Turn
	Delays  []Delay       // of commands that differ from Latency
	Latency time.Duration // of every other command, each way
}

// Turn is one client wanting the lock. It begins at At, or when the turn before it is over.
type Turn struct {
	Client int
	At     protocol.Instant
	Hold   time.Duration
	Key    string // empty: the client's own
}

// Delay is what happened to the Nth command (from 1) that a client sent.
type Delay struct {
	Client         int
	Nth            int
	Request, Reply time.Duration
	Fate           Fate
}

// Fate is what becomes of a command on its way.
type Fate uint8

const (
	Arrives Fate = iota
	RequestLost
	ReplyLost
	Repeated
	ReplyRepeated
)

// FateNames are the names of all fates.
var FateNames = []string{"arrives", "request-lost", "reply-lost", "repeated", "reply-repeated"}

func (f Fate) String() string { return FateNames[f] }
