package protocol

import "time"

// The ops of the bridge. Each is one server script. The reply's Int is its code. Int2 is a fencing
// token, Int3 the milliseconds until a look again is worth it. Text is the value that the code speaks
// of.
const (
	BridgeTake   Op = iota + 128 // bridge_acquire.lua: a Take... code
	BridgeSettle                 // bridge_settle.lua: a Settle... code
	BridgeExtend                 // bridge_renew.lua: a Renew... code
	BridgeDrop                   // bridge_release.lua: a Drop... code
)

// NoTakeover is the Grace of a command that takes nothing over, however long it is expired.
const NoTakeover time.Duration = -1

// The codes of the bridge's ops.
const (
	TakeFree     = 1  // the key was free
	TakeOver     = 2  // an expired legacy value, Text, was taken over
	TakeMine     = 3  // ours already: an earlier sending had arrived; extended
	TakeHeld     = 0  // held; look again after Int3 ms
	TakeForeign  = -1 // a value or type, Text, that is not of the dialect: held
	TakeRefused  = -2 // a ghost, Text: expired, but this command may not take over
	SettleDone   = 1  // both keys are ours
	SettleAgain  = 2  // the key was absent, or expired again; it is ours now
	SettleLeft   = -1 // Text stands on the key; we have withdrawn
	SettleLost   = 0  // the guard is not ours
	RenewDone    = 1  // extended
	RenewRepair  = 2  // one of the keys was gone and is set again
	RenewTheirs  = -1 // the guard is ours, the key holds Text
	RenewLost    = 0  // neither is ours
	DropDone     = 1  // released
	DropHanded   = 3  // released, and the lock is that of the first in the queue now
	DropRepaired = 2  // the key was absent, the guard ours
	DropTheirs   = -1 // the guard was ours, the key holds Text
	DropNothing  = 0  // nothing was ours
)

// SettlesFree tells that a takeover is not the only moment at which a clobber can cost the lock. A
// reader may take a vanished key for an expired one. Its GETSET then goes onto what has come there
// in the meantime. If it also takes its own value for expired, its next attempt finds that value and
// wins.
func (d *Dialect) SettlesFree() bool { return d.MineExpires && d.Missing == MissingExpired }

// BridgeAcquire takes a lock that legacy and token holders on the same key both respect.
//
//	take                     free: acquired
//	                         taken over: settle
//	                         held: sleep, take again
//	settle: sleep, confirm   ours: acquired
//	                         absent: set again; settle again
//	                         a live legacy value: withdraw
//
// # Why it settles
//
// Legacy clients that read the expired value before our takeover may still send their GETSET. They
// lose, since it returns our far-future value, but they overwrite it (the hazard "clobber"). So the
// winner waits for longer than a legacy client needs from its GET to its GETSET, and looks.
//
// # Why it withdraws
//
// A live legacy value that stands on the key at that moment is most likely a loser's. But it may be the
// value of a client that truly holds the lock. The holder of the expired value that we took over may be
// alive after all: it sent its stale DEL, and another client came in. Or, in a dialect that takes its own
// value for expired, the loser looked again. The values do not tell. Putting ours back over the second kind
// makes two holders, and hides it from every later renewal (the explorer's claim LLB-put-back-paused). So the bridge NEVER
// overwrites a legacy expiry that is not over: it gives the guard up and waits like everybody else, which
// costs one legacy lease after a true clobber.
type BridgeAcquire struct {
	Dialect  *Dialect
	Key      string
	Guard    string // in the key's slot; legacy clients never touch it
	Fence    string // the fencing counter's key; empty for none
	FenceTTL time.Duration
	Value    string // far-future to legacy readers, and nobody else's: BridgeValue
	TTL      time.Duration
	Grace    time.Duration // for how long an expiry must be over before a takeover
	Settle   time.Duration // for how long a takeover is watched
	Alone    bool          // no old client is left: nothing is taken over, nothing settles
	Poll     time.Duration // the longest sleep between two attempts
	Patience time.Duration // how much sleep to spend; 0 makes one attempt
	NotAfter Instant
	Yield    Yield
	Queue    string        // the queue's key: a free key goes to the first who waits there; empty for none
	Passes   bool          // an attempt that does not wait takes a free key even when others wait
	Channel  string        // where the waiter listens, or Polls; empty: an attempt that takes no place in the queue
	Claim    time.Duration // of a lock that is handed to us, until we have spoken
	QueueTTL time.Duration // of the queue's key: more than twice the longest sleep

	at      bridgeState
	again   bool // the command that stayed without a reply has been sent again
	settles int
	sent    Instant // when the last command that set the keys had not been sent yet
	won     Instant // when we knew that the lock is ours, where gaps are left for old clients
	fence   int64
	took    bool          // a legacy value was taken over
	seen    string        // what stands on the key
	wait    time.Duration // when to look again; negative: unknown
	before  int64         // how many stand before us in the queue
	entry   string        // ours in the queue, as it was sent last
	stood   string        // the one before it, until the server has replaced that
	ticket  int64         // our place in the queue; 0: none
	queued  Instant       // when the last question that was answered with a ticket had not been sent yet
	handed  bool          // the lock came by a grant
	doubt   bool          // a reply stayed out: what is ours may have been taken over
	verdict Verdict       // of a withdrawal under way
	bare    bool          // which names the lock's own keys alone: the keys beside it were refused
}

// Yield is what bridge holders do so that old clients, which look only now and then, get turns: bridge_yield.lua says
// when they leave the key free. The zero value does nothing.
type Yield struct {
	Key string        // of the state
	Gap time.Duration // for how long the key is left free at a time
}

func (y Yield) on(command Command) Command {
	command.Yield, command.Gap = y.Key, y.Gap
	return command
}

type bridgeState uint8

const (
	bridgeBegin bridgeState = iota
	bridgeTakes
	bridgeSlept
	bridgeSettles // sleeps before the question
	bridgeConfirms
	bridgeDrops
)

// maxSettles bounds how often one acquisition settles before it leaves the key to others.
const maxSettles = 8

// Deadline returns the instant until which the lock is certainly ours. Valid once Acquired.
func (a *BridgeAcquire) Deadline() Instant {
	if a.handed {
		return a.queued.Add(lasts(a.Claim))
	}
	return a.sent.Add(a.TTL)
}

// Handed tells that another holder has handed us the lock. Valid once Acquired.
func (a *BridgeAcquire) Handed() bool { return a.handed }

// Entries returns our entries that may stand in the queue.
func (a *BridgeAcquire) Entries() (entry, stood string) { return a.entry, a.stood }

// Won returns the reading of the client's clock when it knew that the lock is its own. Valid once Acquired; 0 where no gaps are
// left for old clients.
func (a *BridgeAcquire) Won() Instant { return a.won }

// FenceToken returns the fencing token, 0 without a counter. Valid once Acquired.
func (a *BridgeAcquire) FenceToken() int64 { return a.fence }

// Seen returns what stands on the key, as the server told last. It also returns how long to wait
// before a look again is worth it; negative when that is unknown.
func (a *BridgeAcquire) Seen() (value string, wait time.Duration) { return a.seen, a.wait }

// Before returns how many stood before us in the queue when the server answered last.
func (a *BridgeAcquire) Before() int { return int(a.before) }

// TookOver tells that an expired legacy value, Seen, was replaced.
func (a *BridgeAcquire) TookOver() bool { return a.took }

// Holds tells that the keys may be ours at this moment of the run. A caller that abandons it then has
// to send a release.
func (a *BridgeAcquire) Holds() bool {
	return a.at == bridgeTakes || a.at == bridgeSettles || a.at == bridgeConfirms || a.at == bridgeDrops
}

// Next implements Machine.
func (a *BridgeAcquire) Next(now Instant, reply Reply) Step {
	step := a.next(now, reply)
	if step.Verdict == Acquired && a.Yield.Gap > 0 {
		a.won = now
	}
	return step
}

func (a *BridgeAcquire) next(now Instant, reply Reply) Step {
	switch {
	case a.at == bridgeSlept && reply.Kind == Granted && a.certain(now, reply):
		a.at, a.handed, a.fence, a.entry = bridgeTakes, true, reply.Int, ""
		return done(Acquired)
	case a.at == bridgeBegin || a.at == bridgeSlept:
		return a.attempt(now)
	case a.at == bridgeSettles:
		return a.ask(now, bridgeConfirms, BridgeSettle)
	case reply.Kind == Silence:
		return a.silent(now)
	case a.at == bridgeDrops:
		return a.dropped(reply)
	case reply.Kind == Fault:
		return a.refused(reply)
	case a.at == bridgeTakes:
		return a.taken(reply)
	default:
		return a.confirmed(reply)
	}
}

// certain tells that a grant is for our present place, and that enough of its claim is left. The server still said
// "held" after our last question was sent, so the grant is younger than that.
func (a *BridgeAcquire) certain(now Instant, reply Reply) bool {
	return a.ticket != 0 && reply.Int2 == a.ticket && now.Sub(a.queued) < a.Claim/2 && (a.Fence == "" || reply.Int > 0)
}

func (a *BridgeAcquire) attempt(now Instant) Step {
	a.ticket, a.queued, a.seen, a.wait, a.before = 0, 0, "", 0, 0
	if a.Channel != "" {
		if entry := (Entry{a.Claim, a.NotAfter, true, a.Channel, a.Value}).String(); entry != a.entry {
			a.stood, a.entry = a.entry, entry
		}
	}
	a.again, a.settles, a.took = false, 0, false
	return a.ask(now, bridgeTakes, BridgeTake)
}

func (a *BridgeAcquire) taken(reply Reply) Step {
	a.fence, a.seen, a.wait = reply.Int2, reply.Text, milliseconds(reply.Int3)
	a.before = 0
	if reply.Int <= TakeHeld {
		a.fence, a.before = 0, reply.Int2
		a.ticket, a.queued, a.stood = reply.Int4, a.sent, ""
	} else {
		a.entry, a.stood = "", "" // the script has removed it
	}
	switch reply.Int {
	case TakeFree:
		if a.Dialect.SettlesFree() {
			return a.settle()
		}
		return done(Acquired)
	case TakeOver:
		a.took = true
		return a.settle()
	case TakeMine: // an earlier sending arrived, perhaps as a takeover; or the key was given to us
		if a.doubt || a.Dialect.SettlesFree() {
			return a.settle()
		}
		return done(Acquired)
	case TakeForeign:
		return a.pause(Foreign)
	case TakeRefused:
		return a.pause(Ghost)
	default:
		return a.pause(Busy)
	}
}

// settle waits before the next look at the key.
func (a *BridgeAcquire) settle() Step {
	if a.Alone { // without takeovers there are no legacy clients to wait for
		return done(Acquired)
	}
	if a.settles++; a.settles > maxSettles {
		return a.drop(Busy)
	}
	a.at, a.again = bridgeSettles, false
	return sleep(a.Settle)
}

func (a *BridgeAcquire) confirmed(reply Reply) Step {
	switch reply.Int {
	case SettleDone:
		return done(Acquired)
	case SettleAgain:
		return a.settle()
	case SettleLost:
		a.seen, a.wait = "", 0
		return a.pause(Busy)
	default:
		a.seen, a.wait = reply.Text, milliseconds(reply.Int3)
		return a.pause(Busy)
	}
}

// silent deals with a reply that did not come. Both commands may be sent twice: the value is ours
// alone, so the second sending finds out what the first has done. If that stays without a reply too,
// whatever may be ours is given back.
func (a *BridgeAcquire) silent(now Instant) Step {
	switch {
	case a.at == bridgeDrops && a.again:
		return done(Unsure)
	case a.at == bridgeDrops:
		a.again = true
		return send(a.command(BridgeDrop))
	case a.again:
		return a.drop(Failed)
	case a.at == bridgeTakes:
		a.again, a.doubt = true, true
		return a.ask(now, bridgeTakes, BridgeTake)
	default:
		a.again = true
		return a.ask(now, bridgeConfirms, BridgeSettle)
	}
}

// refused deals with a server that refuses: nothing of ours may stay behind.
func (a *BridgeAcquire) refused(reply Reply) Step {
	if a.at == bridgeTakes && !a.again && !reply.withinScript() { // the script has not begun, or it says that it has changed nothing
		a.at = bridgeBegin
		return done(Failed)
	}
	return a.drop(Failed)
}

// drop gives back what may be ours and ends with the verdict.
func (a *BridgeAcquire) drop(v Verdict) Step {
	a.at, a.again, a.bare, a.verdict = bridgeDrops, false, false, v
	return send(a.command(BridgeDrop))
}

func (a *BridgeAcquire) dropped(reply Reply) Step {
	switch {
	case reply.Kind == Fault && !a.bare:
		a.bare = true
		return send(a.command(BridgeDrop))
	case reply.Kind == Fault:
		return done(Unsure)
	}
	return done(a.verdict)
}

// pause ends an attempt that failed.
func (a *BridgeAcquire) pause(v Verdict) Step {
	wait := a.Poll
	if a.wait >= 0 {
		wait = min(wait, a.wait)
	}
	wait = max(wait, time.Millisecond)
	a.Patience -= wait
	a.at = bridgeSlept
	if a.Patience < 0 {
		return done(v)
	}
	return sleep(wait)
}

func (a *BridgeAcquire) ask(now Instant, next bridgeState, op Op) Step {
	a.at, a.sent = next, now
	return send(a.command(op))
}

func (a *BridgeAcquire) command(op Op) Command {
	c := Command{Op: op, Key: a.Key, Guard: a.Guard, Value: a.Value}
	c.TTL = a.TTL
	if op == BridgeDrop && a.bare {
		return c
	}
	c.Queue, c.Entry, c.Stood = a.Queue, a.entry, a.stood
	if op == BridgeDrop {
		return a.Yield.on(c)
	}
	c.NotAfter = a.NotAfter
	if c.Grace = a.Grace; a.Alone {
		c.Grace = NoTakeover
	}
	c.Unit, c.Layout = a.Dialect.Unit, a.Dialect.Layout
	if op == BridgeTake {
		c.Fence, c.FenceTTL, c.QueueTTL = a.Fence, a.FenceTTL, a.QueueTTL
		c = a.Yield.on(c)
		if a.Passes {
			c.Queue = ""
		}
	}
	return c
}

func milliseconds(n int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(n, most)) * time.Millisecond
}

// BridgeRenew extends a bridge lock.
//
//	renew     extended                Renewed
//	          a key was gone          Repaired: a stale DEL; ours again
//	          another's value there   Displaced: someone may have come in after a stale DEL
//	          nothing is ours         Lost
//
// A reply that does not come is asked for once more, which changes nothing; after that the lease keeps
// its old deadline.
type BridgeRenew struct {
	Key      string
	Guard    string
	Fence    string
	FenceTTL time.Duration
	Value    string
	TTL      time.Duration
	NotAfter Instant

	asked bool
	again bool
	sent  Instant
	seen  string
}

// Since returns the reading of the client's clock from which the new TTL counts. Valid once Renewed
// or Repaired.
func (r *BridgeRenew) Since() Instant { return r.sent }

// Seen returns the value that stands in our place. Valid once Displaced.
func (r *BridgeRenew) Seen() string { return r.seen }

// Next implements Machine.
func (r *BridgeRenew) Next(now Instant, reply Reply) Step {
	switch {
	case !r.asked:
		r.asked = true
		return r.ask(now)
	case reply.Kind == Silence && !r.again:
		r.again = true
		return r.ask(now)
	case reply.Kind == Silence, reply.Kind == Fault && r.again:
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	}
	switch reply.Int {
	case RenewDone:
		return done(Renewed)
	case RenewRepair:
		return done(Repaired)
	case RenewTheirs:
		r.seen = reply.Text
		return done(Displaced)
	default:
		return done(Lost)
	}
}

func (r *BridgeRenew) ask(now Instant) Step {
	r.sent = now
	return send(Command{
		Op: BridgeExtend, Key: r.Key, Guard: r.Guard, Value: r.Value, TTL: r.TTL,
		Fence: r.Fence, FenceTTL: r.FenceTTL, NotAfter: r.NotAfter,
	})
}
