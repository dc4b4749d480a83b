package census

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const (
	// longLease is what is believed of a lease without more evidence.
	longLease = 24 * time.Hour
	// agrees is how far a TTL may be from the expiry beside it to count as set together with it.
	agrees = 5 * time.Second
	// sameEnd is how far it may be for the TTL to be the lock's own end: a clock that is further off is rare.
	sameEnd = 2 * time.Minute
)

// Dialects returns which dialects write a format, the likelier first; nil for those that none of them writes.
func (f Format) Dialects() []string { return writers[f] }

// Legacy tells that clients of the old scheme write this format.
func (f Format) Legacy() bool { return f == BlindSet || len(writers[f]) > 0 }

var writers = func() map[Format][]string {
	all := map[Format][]string{}
	for _, d := range protocol.Dialects() {
		all[Format(d.Format)] = append(all[Format(d.Format)], d.Name)
	}
	return all
}()

// nothing is the finding for a key that is no lock.
var nothing = Finding{Format: UnknownFormat, State: UnknownState}

// companion tells a key that accompanies a lock: it is listed as a part of it, not as a lock.
func companion(name []byte) (Finding, bool) {
	f := Finding{Format: UnknownFormat, State: UnknownState, Beside: true, Note: "remembers the answer of a Redisson unlock"}
	if bytes.HasPrefix(name, []byte("redisson_unlock_latch:")) {
		return f, true
	}
	key, role, ok := protocol.Owner(name)
	if ok {
		f.Note = fmt.Sprintf("%s of %.120q", role, key)
	}
	return f, ok
}

// Classify tells what a key is. It never fails: what cannot be told is unknown.
func (j Judge) Classify(k *Look) Finding {
	if k.Type == "hash" {
		return j.hash(k)
	}
	if f, ok := companion(k.Key); ok {
		return f
	}
	if k.Type != "string" || len(k.Value) >= Peek {
		return nothing
	}
	v := Recognise(string(k.Value), j.Now)
	switch v.Kind {
	case ExpiryValue:
		return j.expiry(k, v)
	case BridgeValue:
		return j.bridge(k, names(v.Dialects), v.Note)
	case RandomValue:
		f := j.token(k, Low)
		if v.Surely {
			f.Confidence = max(f.Confidence, Medium)
		}
		if v.Note != "" {
			f.Note = v.Note
		}
		return f
	case OverwriterValue:
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Medium, Note: v.Note}
	case NoValue:
		return nothing
	}
	if !j.named(k) {
		return nothing
	}
	switch v.Kind {
	case NumberValue:
		return j.number(k, v)
	case BinaryValue:
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Medium, Note: v.Note}
	}
	if k.TTL != NoTTL {
		f := j.token(k, Low)
		f.Confidence = Medium
		f.Note = "a text that is no random token; its release may delete another's"
		return f
	}
	return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: "a text without TTL that no lock is known to write"}
}

func names(dialects []*protocol.Dialect) (all []string) {
	for _, d := range dialects {
		all = append(all, d.Name)
	}
	return all
}

// number is a number on a lock's key that is no expiry.
func (j Judge) number(k *Look, v Recognised) Finding {
	switch {
	case v.Note != "":
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: v.Note}
	case k.TTL != NoTTL:
		f := j.token(k, Low)
		f.Confidence = Medium
		f.Note = "a small number with a TTL: a flag, a thread id, or a counter"
		return f
	case string(k.Value) == protocol.RedisObjects.Forever:
		return Finding{
			Format: TokenNoTTL, State: Held, Confidence: Medium, Dialects: []string{protocol.RedisObjects.Name},
			Note: "redis-objects without expiration, or a bare flag: held until deleted; redis-py takes it over at once",
		}
	default:
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: "a number that is no plausible expiry in any unit"}
	}
}

// token is a text that means nothing but its owner.
func (j Judge) token(k *Look, sure Confidence) Finding {
	if j.named(k) {
		sure = High
	}
	if k.TTL == NoTTL {
		return Finding{Format: TokenNoTTL, State: Held, Confidence: sure, Note: "no TTL: held until deleted, for ever if its holder crashed"}
	}
	return j.withTTL(k, Finding{Format: Token, State: Held, Confidence: sure})
}

// bridge is a number that every legacy reader takes for an expiry that never comes.
func (j Judge) bridge(k *Look, dialects []string, note string) Finding {
	f := Finding{Format: Bridge, State: Held, Confidence: High, Dialects: dialects, Note: note}
	if k.TTL == NoTTL {
		f.State, f.Note = Ghost, "a bridge value without its TTL: no legacy client will ever take it over"
		if !j.named(k) {
			f.Confidence = Low // or a random 64-bit id
		}
		return f
	}
	switch {
	case !k.SawGuard:
	case len(k.Guard) == 0 && note == "": // modern tokens are never wrapped
		f.Format, f.Note = Token, "a legacy-safe number without a guard: a modern lock, or a bridge lock that lost its guard"
	case len(k.Guard) == 0:
		f.Note += "; its guard is gone"
	case !bytes.Equal(k.Guard, k.Value):
		f.Note = "its guard holds another value: the lock is changing hands, or one of two holders was displaced"
	}
	return j.withTTL(k, f)
}

func (j Judge) withTTL(k *Look, f Finding) Finding {
	f.Expires, f.HasExpiry = j.Now.Add(time.Duration(k.TTL)*time.Millisecond), true
	return f
}

// expiry is a moment as a dialect writes it.
func (j Judge) expiry(k *Look, v Recognised) Finding {
	past := j.Now.Sub(v.At)
	if k.TTL != NoTTL {
		if f, ok := j.endsByTTL(k, v, past); ok {
			return f
		}
	}
	f := Finding{Format: Format(v.Format), State: Held, Expires: v.At, HasExpiry: true, Dialects: names(v.Dialects), Note: v.Note}
	switch {
	case v.Live(j.Now):
	case past > j.GhostAfter:
		f.State = Ghost
	default:
		f.State = Expired
	}
	f.Confidence = j.sureOf(k, v, past)
	switch {
	case past < -longLease && !v.Forever:
		f.Note = "a lease longer than a day: a clock far ahead, or no lock"
	case k.TTL != NoTTL && f.State != Held:
		f.Note = "it has a TTL too: the server removes it if no legacy client takes it over before"
	}
	return f
}

// endsByTTL is a time in whole milliseconds or seconds beside a TTL that ends at about the same moment. Those
// who write it (SET NX PX, SETNX and EXPIRE, SETEX) live by the TTL, so the TTL says until when it is held,
// whatever their clock has made of the value.
func (j Judge) endsByTTL(k *Look, v Recognised, past time.Duration) (Finding, bool) {
	if len(v.Dialects) == 0 || v.Dialects[0].Layout != protocol.Plain || v.Dialects[0].TakesWithTTL || v.Quantum < time.Millisecond || v.Dialects[0].Unit == protocol.FloatSeconds {
		return Finding{}, false
	}
	off := (past + time.Duration(k.TTL)*time.Millisecond).Abs()
	if off > sameEnd {
		return Finding{}, false
	}
	f := j.withTTL(k, Finding{Format: Token, State: Held, Confidence: Low, Perhaps: names(v.Dialects)})
	switch {
	case j.named(k):
		f.Confidence = High
	case off <= agrees:
		f.Confidence = Medium
	}
	f.Note = "a time with a TTL: its writers live by the TTL, as redis-lock 1.0 (npm) does; lockmigrate observe tells whether one of them reads the value"
	if v.Quantum == time.Second {
		f.Note = "a time with a TTL: node-resque's JobLock (SET NX), or a blind setter (node-resque's QueueLock, celery_once), which overwrites a holder: lockmigrate observe tells which"
		if BlindSetName(string(k.Key)) {
			f.Format, f.Dialects, f.Confidence = BlindSet, blindSet, max(f.Confidence, Medium)
			f.Note = "by its name a key of node-resque's QueueLock or celery_once, whose clients overwrite a holder (SET or SETEX after GET): nothing can share a key with them"
		}
	}
	return f, true
}

var blindSet = []string{protocol.BlindSet}

// sureOf weighs an expiry: past is how long ago it was, negative for one to come.
func (j Judge) sureOf(k *Look, v Recognised, past time.Duration) Confidence {
	near := past > -longLease && past < longLease
	sure := Medium
	switch {
	case j.named(k) || v.Surely:
		sure = High // or nothing else has this form
	case Format(v.Format) == SecPIDThread:
	case past < -longLease:
		sure = Low // locks are not held for days; whatever ends next year is something else
	case !near && (Format(v.Format) == ExpiryS || Format(v.Format) == ExpiryNS):
		sure = Low // ten digits are often an id, and nineteen a snowflake
	}
	if k.TTL == NoTTL {
		return sure
	}
	// The old scheme sets no TTL. Those who add one set it to the same moment.
	if off := past + time.Duration(k.TTL)*time.Millisecond; off > agrees || off < -agrees {
		if !j.named(k) && !v.Surely {
			sure = Low
		}
	}
	return sure
}

// named tells that the key's name, or the operator, says that it is a lock.
func (j Judge) named(k *Look) bool { return j.Chosen || LockName(string(k.Key)) }

// mayBeLock tells from the names of a hash's fields whether its values are worth a look.
func (j Judge) mayBeLock(k *Look) bool {
	if len(k.Fields) == 0 || len(k.Fields) > MaxFields {
		return false
	}
	return j.named(k) || slices.ContainsFunc(k.Fields, func(f Field) bool { return RedissonHolder(string(f.Name)) || isRandom(string(f.Name)) })
}

// hash is a lock that counts its holds: Redisson's, or a hand-written one.
func (j Judge) hash(k *Look) Finding {
	if !j.mayBeLock(k) {
		return nothing
	}
	holder, mode := k.Fields[0], ""
	for _, f := range k.Fields {
		if string(f.Name) == "mode" && (string(f.Value) == "read" || string(f.Value) == "write") {
			mode = string(f.Value)
		} else {
			holder = f
		}
	}
	if len(k.Fields) == 2 && mode == "" || !Digits(string(holder.Value)) || len(holder.Value) > 10 {
		return nothing
	}
	f := Finding{State: Held, Confidence: High}
	switch thread := holder.Name; {
	case RedissonHolder(string(thread)):
		f.Format = Redisson
		if mode != "" {
			f.Note = "a read-write lock, held to " + mode
		}
	case mode != "":
		return nothing
	case isRandom(string(holder.Name)):
		f.Format, f.Confidence = HashUID, Medium
	default:
		f.Format, f.Confidence = HashUID, Low
	}
	if f.Format == HashUID && j.named(k) {
		f.Confidence++
	} else if f.Format == HashUID && k.TTL == NoTTL {
		f.Confidence = Low // or a counter for each user
	}
	if k.TTL == NoTTL {
		f.State = Ghost
		f.Note = "without the TTL that its writers always set"
		return f
	}
	return j.withTTL(k, f)
}
