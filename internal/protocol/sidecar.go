package protocol

import (
	"cmp"
	"time"
)

// The ops of a sidecar, which locks for one service of old code. Each is one server script. It runs instead of a command
// of the service, and answers as that command would.
const (
	SidecarTake   Op = iota + 192 // sidecar_take.lua: SETNX, SET NX, a GETSET that may win
	SidecarGet                    // sidecar_get.lua: GET, a GETSET that plants nothing
	SidecarDel                    // sidecar_del.lua: DEL
	SidecarExpire                 // sidecar_expire.lua: EXPIRE
	SidecarKeep                   // sidecar_keep.lua: a Keep... code, on the sidecar's own connection
	SidecarOld                    // sidecar_old.lua: SETNX, SET, GETSET in stage legacy
)

// The codes of SidecarKeep. Int2 is how long the lock lasts, in milliseconds; of the last two how many DELs are still owed. Text is the token of the first two: another grant has another.
const (
	KeepDone    = 1
	KeepRepair  = 2  // one of the two keys was gone and is set again
	KeepTheirs  = -1 // the guard is ours, the key holds Text
	KeepNothing = 0  // nothing of ours
	KeepOld     = 3  // a legacy expiry, or a token of the client itself
)

// Form is how a script answers, and what it does to answer so.
type Form string

// The forms of a request.
const (
	FormSetNX  Form = "nx"     // 1, 0
	FormSet    Form = "set"    // OK, nil
	FormTakes  Form = "getset" // nil, or a value that loses
	FormWait   Form = "wait"   // 1: the service's next attempt will be granted, 0
	FormGet    Form = "get"    // the own text, far, nil
	FormRaw    Form = "raw"    // the same in stage legacy: what is not ours as it stands there
	FormLoses  Form = "lose"   // far, nil
	FormExtend Form = "extend" // the own text before, far, nil
	formOldNX  Form = "setnx"  // FormSet in stage legacy
)

// SidecarCall is what a command of a sidecar carries beside its keys. It is not changed once it is sent.
type SidecarCall struct {
	Name   string // of the sidecar: the same after a restart, and no other's
	Form   Form
	Text   string        // what the client writes
	Owner  string        // FormExtend: the part of Text that stands for its owner
	Far    string        // what stands for all other holders, live on any clock
	Now    Instant       // the sidecar's clock, which is the client's
	Until  Instant       // when the client takes Text for expired, on that clock; 0: never
	Owes   time.Duration // for how long a DEL is expected; 0: none will come
	Once   bool          // no two clients write this text, so the same text again is the same attempt
	Free   bool          // a free key settles too
	Settle time.Duration
	Plain  bool // SidecarTake: the text itself is the token. SidecarDel: a key without a grant of ours is deleted, within NotAfter
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
	Legacy  bool          // stage legacy: commands do what they always did, and are remembered
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
	if s.Legacy {
		if form == FormSet {
			form = formOldNX
		}
		return s.old(now, key, text, form)
	}
	return s.take(now, key, text, token, form)
}

// Wait is the sidecar's own question for an attempt that it holds back: the lock is kept for that one, or it gets a place in the queue.
func (s *Sidecar) Wait(now Instant, key, token string) Command {
	c := s.take(now, key, "", token, FormWait)
	c.TTL, c.Sidecar.Until, c.Sidecar.Owes, c.Sidecar.Once = c.Claim, 0, 0, false
	return c
}

// SetNXPX is SET with NX and a TTL: a token lock already. The text stands on the key, so that a script of the client finds it there.
func (s *Sidecar) SetNXPX(now Instant, key, text string, ttl time.Duration) Command {
	c := s.command(SidecarTake, now, key)
	c.Value, c.TTL, c.Grace = "=", ttl, NoTakeover
	c.Sidecar.Form, c.Sidecar.Text, c.Sidecar.Until, c.Sidecar.Owes, c.Sidecar.Plain = FormSet, text, now.Add(ttl), 2*ttl, true
	return c
}

// Get is GET.
func (s *Sidecar) Get(now Instant, key string) Command {
	c := s.command(SidecarGet, now, key)
	if c.Sidecar.Form = FormGet; s.Legacy {
		c.Sidecar.Form = FormRaw
	}
	return c
}

// GetSet is GETSET, or SET with GET. Its sender has seen an expired value, or none. No expired value is ever shown to it. What
// is left are two kinds of dialects: those that take a vanished key for an expired one, and those that take their own value
// for expired.
func (s *Sidecar) GetSet(now Instant, key, text, token string) Command {
	d := s.Dialect
	switch {
	case s.Legacy:
		return s.old(now, key, text, FormTakes)
	case d != nil && d.MineExpires:
		c := s.command(SidecarGet, now, key)
		c.TTL, c.Sidecar.Until = s.lease(now, text)
		c.Sidecar.Form, c.Sidecar.Text, c.Sidecar.Owner = FormExtend, text, d.Layout.owner(text)
		if c.TTL < time.Millisecond || c.Sidecar.Until == 0 || c.Sidecar.Owner == "" { // over, or no text of the dialect
			c.Sidecar.Form = FormLoses
		}
		return c
	case d != nil && d.Missing == MissingExpired && d.Win != OldIsRead:
		return s.take(now, key, text, token, FormTakes)
	default:
		c := s.command(SidecarGet, now, key)
		c.Sidecar.Form = FormLoses
		return c
	}
}

// Set is SET without NX. In stage legacy a client may take over with it in a transaction; later it would overwrite a lock, and ok is false.
func (s *Sidecar) Set(now Instant, key, text string) (c Command, ok bool) {
	return s.old(now, key, text, FormSet), s.Legacy
}

// Del is DEL or UNLINK.
func (s *Sidecar) Del(now Instant, key string) Command {
	c := s.command(SidecarDel, now, key)
	c.Sidecar.Plain = s.Legacy
	if fleet := cmp.Or(s.Fleet, s.Dialect); fleet != nil && !s.Legacy && !s.Alone {
		c.Breath = fleet.Breath()
	}
	return c
}

// Expire is EXPIRE and its kin.
func (s *Sidecar) Expire(now Instant, key string, ttl time.Duration) Command {
	if ttl < time.Millisecond {
		return s.Del(now, key) // as the server does it
	}
	c := s.command(SidecarExpire, now, key)
	c.TTL, c.Sidecar.Until = ttl, now.Add(ttl)
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
	c := Command{Op: op, Key: key, Guard: GuardKey(key), Record: SidecarKey(key), Sidecar: &SidecarCall{Name: s.Name, Now: now, Far: s.Far}}
	if !s.Legacy {
		c.Queue = QueueKey(key)
	}
	if s.Gap > 0 && !s.Alone && !s.Legacy {
		c.Yield, c.Gap = YieldKey(key), s.Gap
	}
	return c
}

func (s *Sidecar) take(now Instant, key, text, token string, form Form) Command {
	c, d := s.command(SidecarTake, now, key), s.Dialect
	call := c.Sidecar
	call.Form, call.Text = form, text
	c.Value, c.Grace, c.Claim = token, NoTakeover, 3*cmp.Or(s.Poll, usualPoll)
	c.TTL, call.Until = s.lease(now, text)
	call.Owes = 2 * c.TTL
	// Only an expiry can be known to be one client's: a text without a time may be a flag, or the name of a host or process.
	call.Once = d != nil && d.Unique && call.Until != 0
	if d != nil {
		c.Claim = 3 * cmp.Or(s.Poll, d.Poll)
		if d.Release == ReleaseNever {
			call.Owes = 0
		}
	}
	if fleet := cmp.Or(s.Fleet, d); fleet != nil {
		c.Unit, c.Layout = fleet.Unit, fleet.Layout
		if !s.Alone {
			c.Grace, call.Settle, call.Free = s.Grace, s.Settle, fleet.SettlesFree()
		}
	}
	return c
}

func (s *Sidecar) old(now Instant, key, text string, form Form) Command {
	c := s.command(SidecarOld, now, key)
	c.Sidecar.Form, c.Sidecar.Text = form, text
	c.TTL, c.Sidecar.Until = s.lease(now, text)
	c.Sidecar.Owes = max(2*c.TTL, time.Second)
	if d := cmp.Or(s.Fleet, s.Dialect); d != nil {
		c.Unit, c.Layout = d.Unit, d.Layout
	}
	return c
}

// Translate is what becomes of a command of the old machines. The transaction of dialect K is not among them: behind a sidecar
// its client never comes to its SET.
func (s *Sidecar) Translate(now Instant, c Command, token string, bound Instant) Command {
	t := c
	switch c.Op {
	case SetNX:
		t = s.SetNX(now, c.Key, c.Value, token, FormSetNX)
	case Get:
		t = s.Get(now, c.Key)
	case GetSet:
		t = s.GetSet(now, c.Key, c.Value, token)
	case Del:
		t = s.Del(now, c.Key)
	default:
		return c
	}
	t.NotAfter = bound
	return t
}
