package protocol

import (
	"cmp"
	"time"
)

// The ops of a sidecar, which locks for one service of old code. Each is one server script. It runs instead of a command
// of the service, and answers as that command would.
const (
	SidecarTake Op = iota + 192 // sidecar_take.lua: SETNX, SET NX, GETSET
	SidecarGet                  // sidecar_get.lua: GET
	SidecarDel                  // sidecar_del.lua: DEL
	SidecarKeep                 // sidecar_keep.lua: a Keep... code, on the sidecar's own connection
	SidecarRun                  // sidecar_run.lua: the command Sidecar.Runs. Package sidecar sends it, and any other command, by itself
)

// The codes of SidecarKeep. Int2 is how long the lock lasts, in milliseconds; of KeepNothing 1 if a grant has ended without a DEL. Text is
// the token of the first two: another grant has another.
const (
	KeepDone    = 1
	KeepRepair  = 2  // one of the two keys was gone and is set again
	KeepTheirs  = -1 // the guard is ours, the key holds Text
	KeepNothing = 0  // nothing of ours
	KeepOld     = 3  // the same, and a value without a TTL stands there
)

// Form is how a script answers, and what it does to answer so.
type Form string

// The forms of a request.
const (
	FormSetNX Form = "nx"     // 1, 0
	FormTimed Form = "timed"  // the same: SET NX PX, whose TTL the service sees
	FormSet   Form = "set"    // OK, nil
	FormTakes Form = "getset" // a GETSET that wins on nothing: nil, the own text, or a value that loses
	FormLoses Form = "lose"   // one that does not: never nil
	FormWait  Form = "wait"   // 1: the service's next attempt will be granted, 0
)

// SidecarCall is what a command of a sidecar carries beside its keys. It is not changed once it is sent.
type SidecarCall struct {
	Name   string // of the sidecar: the same after a restart, and no other's
	Form   Form
	Text   string  // what the client writes
	Far    string  // what stands for all other holders, live on any clock
	Now    Instant // the sidecar's clock, which is the client's
	Until  Instant // when the client takes Text for expired, on that clock; 0: never
	Unit   Unit    // of the service's dialect
	Layout Layout  // of it
	Free   bool    // a free key settles too
	Settle time.Duration
	Runs   *Command // SidecarRun
}

// SidecarChannel returns the name of a sidecar's channel. On it the sidecar hears what its scripts tell, and that a lock was
// handed to it.
func SidecarChannel(name string) string { return "lockmigrate:sidecar:" + name }

// Sidecar translates the commands of a service that nobody changes, in one stage of its namespace. It only computes: the record of
// what is held is on the server, so a sidecar that is started again knows all.
type Sidecar struct {
	Name    string
	Dialect *Dialect      // of the service; nil: it writes no expiries
	Fleet   *Dialect      // of the namespace, if it is another
	Lease   time.Duration // of a lock without an expiry; the sidecar renews it
	Legacy  bool          // stage legacy: nothing is translated
	Alone   bool          // stage modern: no client of the old scheme is about
	Grace   time.Duration // as of a BridgeAcquire; negative: never take over
	Settle  time.Duration // the same
	Gap     time.Duration // stage bridge: the length of a gap for clients of the old scheme; 0 leaves none
	Poll    time.Duration // between two attempts of the service's client; 0: the dialect's, or 100 ms
	Far     string        // a bridge value, of the service's dialect, that stands for all other holders
}

// usualPoll is for how long a client sleeps between two attempts where no dialect says so.
const usualPoll = 100 * time.Millisecond

// Century is the longest lease that is taken at its word. A time beyond it stands for no end.
const Century = 100 * 365 * 24 * time.Hour

// lease says what a text means: for how long from now, and until when its client takes it for live; 0: it names no end.
func (s *Sidecar) lease(now Instant, text string) (ttl time.Duration, until Instant) {
	if s.Dialect == nil || text == s.Dialect.Forever {
		return s.Lease, 0
	}
	ends, ok := s.Dialect.Written(text)
	if !ok {
		return s.Lease, 0
	}
	ends = ends.Add(s.Dialect.last())
	if ttl = max(0, ends.Sub(now)); ttl > Century {
		return s.Lease, 0
	}
	return (ttl + time.Millisecond - 1).Truncate(time.Millisecond), ends
}

// last is for how long after the instant that a value stands for its readers take it for live: a count of seconds lasts to the end of
// its second.
func (d *Dialect) last() time.Duration {
	if d.Unit == Seconds && !d.AtOrBefore {
		return time.Second
	}
	return 0
}

// SetNX is SETNX, or SET with NX and no TTL. Token is a bridge value that nobody else has.
func (s *Sidecar) SetNX(now Instant, key, text, token string, form Form) Command {
	c, d := s.command(SidecarTake, now, key), s.Dialect
	call := c.Sidecar
	call.Form, call.Text, call.Settle = form, text, s.Settle
	c.Value, c.Grace, c.Claim = token, s.Grace, 3*cmp.Or(s.Poll, usualPoll)
	c.TTL, call.Until = s.lease(now, text)
	if d != nil {
		c.Claim = 3 * cmp.Or(s.Poll, d.Poll)
	}
	if fleet := cmp.Or(s.Fleet, d); fleet != nil {
		c.Unit, c.Layout = fleet.Unit, fleet.Layout
		own := cmp.Or(d, fleet)
		call.Unit, call.Layout = own.Unit, own.Layout
		call.Free = !s.Alone && fleet.SettlesFree()
	} else {
		c.Grace = NoTakeover
	}
	return c
}

// Wait is the sidecar's own question for an attempt that it holds back: the lock is kept for that one, or it gets a place in the queue.
func (s *Sidecar) Wait(now Instant, key, token string) Command {
	c := s.SetNX(now, key, "", token, FormWait)
	c.TTL, c.Sidecar.Until = c.Claim, 0
	return c
}

// Get is GET.
func (s *Sidecar) Get(now Instant, key string) Command {
	c := s.command(SidecarGet, now, key)
	if fleet := cmp.Or(s.Fleet, s.Dialect); fleet != nil {
		c.Unit, c.Layout = fleet.Unit, fleet.Layout
	}
	return c
}

// GetSet is GETSET, or SET with GET. On nothing it takes the lock for dialects that take a vanished key for an expired one. For all others
// it takes nothing then: they would lose, and the value would stand in everybody's way.
func (s *Sidecar) GetSet(now Instant, key, text, token string) Command {
	form := FormLoses
	if d := s.Dialect; d != nil && d.Missing == MissingExpired && d.Win != OldIsRead {
		form = FormTakes
	}
	return s.SetNX(now, key, text, token, form)
}

// Del is DEL or UNLINK.
func (s *Sidecar) Del(now Instant, key string) Command {
	c := s.command(SidecarDel, now, key)
	if fleet := cmp.Or(s.Fleet, s.Dialect); fleet != nil && !s.Alone {
		c.Breath = fleet.Breath()
	}
	return c
}

// Keep looks after a key that the service may hold. Connected tells that the service is there: a lock without an end is then renewed.
func (s *Sidecar) Keep(now Instant, key string, connected bool) Command {
	c := s.command(SidecarKeep, now, key)
	if connected {
		c.TTL = s.Lease
	}
	return c
}

func (s *Sidecar) command(op Op, now Instant, key string) Command {
	c := Command{Op: op, Key: key, Guard: GuardKey(key), Record: SidecarKey(key), Queue: QueueKey(key), Sidecar: &SidecarCall{Name: s.Name, Now: now, Far: s.Far}}
	if s.Gap > 0 && !s.Alone {
		c.Yield, c.Gap = YieldKey(key), s.Gap
	}
	return c
}

// Translate is what becomes of a command of the old machines. The transaction of dialect K is not among them: behind a sidecar
// its client never comes to its SET.
func (s *Sidecar) Translate(now Instant, c Command, token string, bound Instant) Command {
	t := c
	switch {
	case s.Legacy:
		return c
	case c.Op == SetNX:
		t = s.SetNX(now, c.Key, c.Value, token, FormSetNX)
	case c.Op == Get:
		t = s.Get(now, c.Key)
	case c.Op == GetSet:
		t = s.GetSet(now, c.Key, c.Value, token)
	case c.Op == Del:
		t = s.Del(now, c.Key)
	default:
		t = s.command(SidecarRun, now, c.Key)
		t.Sidecar.Runs, t.TTL = &c, s.Lease
	}
	t.NotAfter = bound
	return t
}
