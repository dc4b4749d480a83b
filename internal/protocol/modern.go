package protocol

import (
	"strings"
	"time"
)

// The ops of the token locks.
const (
	SetToken     Op = iota + 64 // SET key value NX PX ttl: OK or nil
	Take                        // modern_take.lua: {1, fence, 0} taken, {0, remaining ms, 0} held
	Extend                      // modern_extend.lua: 1 extended, 0 not ours
	Queue                       // modern_queue.lua: {1, fence, 0} taken, {-n, remaining ms, ticket} queued behind n
	QueueRelease                // modern_release.lua: 2 handed to the next waiter, 1 deleted, 0 not ours
	WaitReplicas                // WAIT count ttl: how many replicas have every write of this connection
	Unqueue                     // ZREM queue entry: how many were removed

	RedissonTake    // modern_redisson_take.lua: nil taken, else the remaining ms
	RedissonExtend  // modern_redisson_extend.lua: 1 extended, 0 not ours
	RedissonRelease // modern_redisson_release.lua: 1 deleted, 0 not ours
)

// The further reply kinds of a queued wait, which may come instead of Woke.
const (
	// Granted: a holder has handed us the key. Int is the fencing token (0 for none), Int2 the ticket
	// that we had in the queue.
	Granted ReplyKind = iota + 64
	// Changed: the server has told that the key was written or deleted, or has expired.
	Changed
)

// ModernAcquire is one attempt at a token lock.
//
//	SET key token NX PX ttl              OK: acquired, nil: held
//
// With a fencing counter it is one script instead, which draws the fencing token with the key. A
// reply that does not come is settled by asking again in a way that may be asked twice: the token is
// ours alone, so a key that holds it is ours.
//
// A command that was lost on its way may still arrive after that, when the lock has been released
// again. It leaves the token on the key for one TTL. Nothing on the client can prevent it.
type ModernAcquire struct {
	Key      string
	Token    string
	TTL      time.Duration
	Fence    string        // the counter's key; empty for none
	FenceTTL time.Duration // how long the counter outlives its last use
	Script   bool          // use the script in any case: it reads the key, and tells how long it is held
	Queues   bool          // use the script, and be refused where the queue's scripts could not run
	// Redisson makes it RLock.tryLock: the key is a hash, Token its field. Each run has a token of its own, and the release takes away
	// whatever was counted, so to be counted twice does no harm.
	Redisson bool

	at    modernState
	sent  Instant // when the command that was answered last had not been sent yet
	fence int64
	left  time.Duration
}

type modernState uint8

const (
	modernBegin modernState = iota
	modernAsked
	modernAskedAgain
	modernSlept
	modernTaking
)

// Deadline returns until when the lock is certainly ours, on the client's own clock. It is counted
// from before the command was sent. Valid once Acquired.
func (a *ModernAcquire) Deadline() Instant { return a.sent.Add(a.TTL) }

// FenceToken returns the fencing token, 0 without a counter. Valid once Acquired.
func (a *ModernAcquire) FenceToken() int64 { return a.fence }

// Left returns the holder's remaining TTL as far as the server told: negative when it did not, or
// when the key has none. Valid once Busy.
func (a *ModernAcquire) Left() time.Duration { return a.left }

// Next implements Machine.
func (a *ModernAcquire) Next(now Instant, reply Reply) Step {
	switch reply.Kind {
	case Fault:
		if a.Redisson && wrongType(reply) {
			return done(Foreign)
		}
		if a.at == modernAskedAgain || reply.withinScript() { // the first says nothing about the command whose reply was lost
			return done(Unsure)
		}
		return done(Failed)
	case Silence:
		if a.at == modernAskedAgain {
			return done(Unsure)
		}
		return a.ask(now, modernAskedAgain, Take)
	}
	switch {
	case a.at == modernBegin && a.Fence == "" && !a.Script && !a.Queues && !a.Redisson:
		return a.ask(now, modernAsked, SetToken)
	case a.at == modernBegin:
		return a.ask(now, modernAsked, Take)
	case a.Redisson && reply.Kind == Nil:
		return done(Acquired)
	case a.Redisson:
		a.left = milliseconds(reply.Int)
		return done(Busy)
	case reply.Kind == Integer && reply.Int == 1:
		a.fence = reply.Int2
		return done(Acquired)
	case reply.Kind == Text: // SET's OK
		return done(Acquired)
	case reply.Kind == Integer:
		a.left = time.Duration(reply.Int2) * time.Millisecond
		return done(Busy)
	default:
		a.left = -1
		return done(Busy)
	}
}

func (a *ModernAcquire) ask(now Instant, next modernState, op Op) Step {
	if a.at, a.sent = next, now; a.Redisson {
		return send(Command{Op: RedissonTake, Key: a.Key, Value: a.Token, TTL: a.TTL})
	}
	return send(Command{Op: op, Key: a.Key, Value: a.Token, TTL: a.TTL, Fence: a.Fence, FenceTTL: a.FenceTTL, Queues: a.Queues})
}

// ModernQueue waits for a token lock in the key's queue on the server.
//
//	queue                          taken: acquired
//	                               held: sleep until the holder's TTL has passed, ask again
//	a grant during the sleep       the holder has handed us the key: acquired
//	a change during the sleep      where an old client held the key: SET key token NX PX ttl
//
// A client that releases the key, or finds it free, gives it to the head of the queue. The lock is
// never free between two holders, so nobody can overtake. The hand-over costs the new holder no
// command. The alternative is to wake the head and to let it compete. It needs one command more in
// the critical path. And a newcomer would win every race against a client that has to be woken first.
//
// A grant comes with a short TTL, the claim. A waiter that dies before it hears of the grant blocks
// the key for that time only. We know by our own clock until when the claim lasts: the server still
// said "queued" after our last question was sent, so the grant is younger than that. If too little of
// the claim is certain, one more question makes it a full lease; and so does the first renewal in any
// case.
//
// Nobody hands on the key of an old client: it is deleted, and the first in the queue has to hear of that and ask. It asks with
// a plain SET. On an idle server its answer takes little more than half of the time of the script's. The SET does not look at
// the queue. It need not, where we stood first when we asked last: a client can enter the queue only at its end, so nobody has
// come before us. (We may have been passed over as one who does not listen. Or the queue may have gone with its TTL. Then we
// are before somebody who has come later than we have.) What remains of us there is removed once we have the key: EntryLeft. We
// know a key of an old client by its missing TTL. On a key with a TTL a change is mostly a renewal: the SET would be a question
// for nothing.
type ModernQueue struct {
	Key          string
	Queue        string // the queue's key
	Guard        string // the guard's key: a bridge client that waits gets it with the key
	Yield        string // the key with the state of the bridge's gaps, in which we keep off; empty: none are looked for
	Token        string
	Channel      string        // where grants to us are published, or Polls
	TTL          time.Duration // of the lock
	Claim        time.Duration // of a grant
	QueueTTL     time.Duration // of the queue's key: more than twice MaxSleep
	Fence        string
	FenceTTL     time.Duration
	Share        time.Duration // how long at a time the key is left to clients who only poll; 0: never
	ConfirmGrant bool          // a grant is asked about, which makes a full lease of the claim: nobody renews it
	MaxSleep     time.Duration // the longest time between two questions
	Tries        int           // how many questions in a row may stay without an answer; 0: any number

	at        modernState
	silences  int
	asked     Instant // when the last question had not been sent yet
	queued    Instant // the same of the last question that was answered with "queued"; 0 for none
	deadline  Instant
	fence     int64
	left      time.Duration
	before    int64
	handed    bool
	entryLeft bool
	ticket    int64 // our place in the queue; a grant for another one is an old message
}

// Polls stands for the channel of a waiter that listens on none: it is given the key too, and finds that out when it
// asks, within its claim.
const Polls = "-"

// Deadline returns the instant until which the lock is certainly ours. Valid once Acquired.
func (q *ModernQueue) Deadline() Instant { return q.deadline }

// FenceToken returns the fencing token, 0 without a counter. Valid once Acquired.
func (q *ModernQueue) FenceToken() int64 { return q.fence }

// Left returns the holder's remaining TTL as the server told last; negative when the key has none.
func (q *ModernQueue) Left() time.Duration { return q.left }

// Before returns how many waiters stood before us when the server answered last.
func (q *ModernQueue) Before() int { return int(q.before) }

// Old tells that the key had no TTL when we asked last: an old client holds it. Valid with a Sleep.
func (q *ModernQueue) Old() bool { return q.left < 0 }

// Unanswered tells that the last question has no answer yet: it may have taken the key.
func (q *ModernQueue) Unanswered() bool { return q.silences > 0 }

// Handed tells that the lock came by a grant and not by asking. Valid once Acquired.
func (q *ModernQueue) Handed() bool { return q.handed }

// EntryLeft tells that our entry is still in the queue: to be removed by ModernLeave, and by a release that
// comes before that has been confirmed. Valid once Acquired.
func (q *ModernQueue) EntryLeft() bool { return q.entryLeft }

// Next implements Machine.
func (q *ModernQueue) Next(now Instant, reply Reply) Step {
	if q.at == modernBegin {
		return q.ask(now)
	}
	if q.at == modernSlept {
		if reply.Kind == Granted && !q.ConfirmGrant && q.certain(now, reply) {
			q.deadline, q.fence, q.handed = q.queued.Add(lasts(q.Claim)), reply.Int, true
			return done(Acquired)
		}
		if reply.Kind == Changed && q.mayTakeDirect() {
			return q.takeDirect(now)
		}
		return q.ask(now)
	}
	switch {
	case q.at == modernTaking && reply.Kind == Text: // SET's OK
		q.deadline, q.entryLeft = q.asked.Add(q.TTL), true
		return done(Acquired)
	case q.at == modernTaking && reply.Kind != Silence: // somebody else has it; or the script is told why not
		return q.ask(now)
	case reply.Kind == Silence:
		q.silences++
		if q.Tries > 0 && q.silences >= max(q.Tries, 2) {
			return done(Unsure)
		}
		if q.silences == 1 {
			return q.ask(now)
		}
		q.at = modernSlept
		return sleep(min(q.MaxSleep, time.Duration(min(q.silences, 10))*100*time.Millisecond))
	case reply.Kind == Fault && wrongType(reply):
		return done(Foreign)
	case reply.Kind == Fault && reply.withinScript():
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case reply.is(1):
		q.deadline, q.fence = q.asked.Add(q.TTL), reply.Int2
		return done(Acquired)
	}
	q.silences = 0
	q.queued, q.before, q.ticket = q.asked, -reply.Int, reply.Int3
	q.left = time.Duration(reply.Int2) * time.Millisecond
	q.at = modernSlept
	if q.left < 0 || q.left >= q.MaxSleep {
		return sleep(q.MaxSleep)
	}
	return sleep(q.left + time.Millisecond) // PTTL rounds: a key lives up to a millisecond longer than it says
}

// certain tells whether a grant may be relied on without asking. It must be for the place that we had
// when we asked last. Half of the claim must be left even if it was given right after that. And the
// fencing token must have come with it, if we need one.
func (q *ModernQueue) certain(now Instant, reply Reply) bool {
	return q.queued != 0 && reply.Int2 == q.ticket && now.Sub(q.queued) < q.Claim/2 && (q.Fence == "" || reply.Int > 0)
}

// mayTakeDirect tells whether the key may be taken past the script: an old client held it, and we are the
// first in line. There is nothing to keep but the key and the queue: no fencing counter, no share.
func (q *ModernQueue) mayTakeDirect() bool {
	return q.queued != 0 && q.Old() && q.before == 0 && q.Fence == "" && q.Share == 0
}

// takeDirect takes the key if it is free.
func (q *ModernQueue) takeDirect(now Instant) Step {
	q.at, q.asked = modernTaking, now
	return send(Command{Op: SetToken, Key: q.Key, Value: q.Token, TTL: q.TTL})
}

func (q *ModernQueue) ask(now Instant) Step {
	q.at, q.asked = modernAsked, now
	return send(Command{
		Op: Queue, Key: q.Key, Value: q.Token, TTL: q.TTL,
		Queue: q.Queue, Guard: q.Guard, Yield: q.Yield, Channel: q.Channel, Claim: q.Claim, QueueTTL: q.QueueTTL,
		Fence: q.Fence, FenceTTL: q.FenceTTL, Share: q.Share,
	})
}

// ModernLeave removes our entry from the queue of a key that we hold.
type ModernLeave struct {
	Key     string
	Queue   string // as in ModernQueue, and so what follows
	Token   string
	Channel string
	Claim   time.Duration

	at modernState
}

// Next implements Machine.
func (l *ModernLeave) Next(_ Instant, reply Reply) Step {
	switch {
	case l.at == modernBegin, reply.Kind == Silence && l.at == modernAsked:
		l.at++
		return send(Command{Op: Unqueue, Key: l.Key, Value: l.Token, Queue: l.Queue, Channel: l.Channel, Claim: l.Claim})
	case reply.Kind == Integer:
		return done(Released)
	default: // a release asks again
		return done(Unsure)
	}
}

// ModernRenew extends a lease that we hold. A reply that does not come leaves the lease at its old
// deadline: Unsure, and the caller asks again as long as that lasts.
type ModernRenew struct {
	Key      string
	Token    string
	TTL      time.Duration
	Fence    string
	FenceTTL time.Duration
	Redisson bool // the key is a hash, Token its field

	at   modernState
	sent Instant
	seen string
}

// Deadline returns the new end of the lease on the client's own clock. Valid once Renewed.
func (r *ModernRenew) Deadline() Instant { return r.sent.Add(r.TTL) }

// Seen returns what the key holds in place of our token; empty where that is not known. Valid once Lost.
func (r *ModernRenew) Seen() string { return r.seen }

// Next implements Machine.
func (r *ModernRenew) Next(now Instant, reply Reply) Step {
	switch {
	case r.at == modernBegin:
		r.at, r.sent = modernAsked, now
		if r.Redisson {
			return send(Command{Op: RedissonExtend, Key: r.Key, Value: r.Token, TTL: r.TTL})
		}
		return send(Command{Op: Extend, Key: r.Key, Value: r.Token, TTL: r.TTL, Fence: r.Fence, FenceTTL: r.FenceTTL})
	case reply.Kind == Silence:
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case reply.is(1):
		return done(Renewed)
	default:
		r.seen = reply.Text
		return done(Lost)
	}
}

// ModernRelease gives a key back by token: to the next waiter where the key has a queue, or by
// deleting it. A reply that does not come is asked for once more; then the key may stay taken until
// the lease ends by itself.
//
// A refusal where the key has a queue is followed by a plain compare-and-delete. That needs a right to the
// lock's own key only. So it frees the lock where the keys beside it are denied.
//
// With Entry set it also leaves the queue. A wait that was given up ends so, whether or not the key has
// been granted to it meanwhile; and with Held, how a lock ends whose entry still stands there.
type ModernRelease struct {
	Key      string
	Token    string
	Queue    string // the queue's key; empty for a plain compare-and-delete
	Guard    string // with Queue: as in ModernQueue
	Entry    bool   // we may still stand in the queue
	Held     bool   // with Entry: the key was ours, so that it is a loss if it is not
	Channel  string // with Entry: as in ModernQueue
	Claim    time.Duration
	Share    time.Duration
	Wanted   bool // somebody is likely to wait: let the server tell them before it answers us
	Fence    string
	FenceTTL time.Duration
	Redisson bool // the key is a hash, Token its field: RLock.unlock of the last hold, and its announcement

	at modernState
}

// Next implements Machine.
func (r *ModernRelease) Next(now Instant, reply Reply) Step {
	switch {
	case r.at == modernBegin:
		return r.ask(modernAsked)
	case reply.Kind == Silence && r.at == modernAsked:
		return r.ask(modernAskedAgain)
	case reply.Kind == Fault && r.Queue != "":
		r.Queue = ""
		return r.ask(r.at)
	case reply.Kind == Silence, reply.Kind == Fault && r.at == modernAskedAgain:
		return done(Unsure)
	case reply.Kind == Fault:
		return done(Failed)
	case reply.is(0) && r.at == modernAsked && (r.Held || !r.Entry):
		return done(NotOurs)
	default: // not ours any more after a question that was lost: by our doing, or by the end of the lease
		return done(Released)
	}
}

func (r *ModernRelease) ask(next modernState) Step {
	r.at = next
	c := Command{Op: CompareDel, Key: r.Key, Value: r.Token}
	if r.Redisson {
		c.Op, c.Channel = RedissonRelease, RedissonChannel(r.Key)
	}
	if r.Queue != "" {
		c.Op, c.Queue, c.Guard = QueueRelease, r.Queue, r.Guard
		c.Fence, c.FenceTTL, c.Share, c.Wanted = r.Fence, r.FenceTTL, r.Share, r.Wanted
		if r.Entry {
			c.Channel, c.Claim = r.Channel, r.Claim
		}
	}
	return send(c)
}

// withinScript tells that the error is of a script that had begun: servers name the line then. What it had
// written before is unknown. The project's scripts write what takes a lock last, and fail before that; this is
// for servers that fail in other places.
func (r Reply) withinScript() bool { return strings.Contains(r.Text, "user_script") && !r.Unwritable() }

// Unwritable tells that a server takes no writes at the moment: a replica, a master with too few replicas, or one that cannot save.
// It has refused the first write, so nothing has changed.
func (r Reply) Unwritable() bool {
	return strings.Contains(r.Text, "READONLY ") || strings.Contains(r.Text, "NOREPLICAS ") || strings.Contains(r.Text, "MISCONF ")
}

// wrongType tells that the key is of another type; older servers wrap the words of a script's error.
func wrongType(reply Reply) bool { return strings.Contains(reply.Text, "WRONGTYPE") }
