package census

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Which moments are plausible as an expiry. The windows of the four units do not overlap, so a number has
// one unit or none.
const (
	// firstRedis is the month of the first release: no lock has expired before.
	firstRedis = protocol.Instant(1238544000 * int64(time.Second))
	// farthest is the longest lease that is believed at all; longLease what is believed without more evidence.
	farthest  = 10 * 365 * 24 * time.Hour
	longLease = 24 * time.Hour
	// agrees is how far a TTL may be from the expiry beside it to count as set together with it.
	agrees = 5 * time.Second

	redisPyForever = 2147483649 // seconds: what redis-py writes for a lock without timeout
)

var (
	jedisMS      = []string{"jedis-ms", "servicestack"}
	jedisUUID    = []string{"jedis-uuid"}
	floatS       = []string{"redispy-float", "redis-objects"}
	redispyFloat = []string{"redispy-float"}
	redisObjects = []string{"redis-objects"}
	redisDoc     = []string{"redis-doc"}
	secPID       = []string{"sec-pid-thread"}
	serviceStack = []string{"servicestack"}
	unixNS       = []string{"unix-ns"}
)

// Dialects returns which dialects write a format, the likelier first; nil for those that none of them writes.
func (f Format) Dialects() []string {
	switch f {
	case ExpiryMS:
		return jedisMS
	case ExpiryS:
		return redisDoc
	case ExpiryFloatS:
		return floatS
	case ExpiryNS:
		return unixNS
	case UUIDExpiryMS:
		return jedisUUID
	case SecPIDThread:
		return secPID
	}
	return nil
}

// nothing is the finding for a key that is no lock.
var nothing = Finding{Format: UnknownFormat, State: UnknownState}

// Classify tells what a key is. It never fails: what cannot be told is unknown.
func (j Judge) Classify(k *Look) Finding {
	if k.Type == "hash" {
		return j.hash(k)
	}
	if f, ok := companion(k.Key); ok {
		return f
	}
	if k.Type != "string" || len(k.Value) == 0 || len(k.Value) >= Peek {
		return nothing
	}
	switch c := k.Value[0]; {
	case c >= '0' && c <= '9':
		if f, ok := j.numeric(k); ok {
			return f
		}
	case c == '"':
		return j.quoted(k)
	}
	if f, ok := j.uuidNumber(k); ok {
		return f
	}
	if f, ok := j.binarySeconds(k); ok {
		return f
	}
	return j.text(k)
}

// numeric reads values that begin with a digit: the expiries, and the owners behind them.
func (j Judge) numeric(k *Look) (Finding, bool) {
	digits := digitsAt(k.Value)
	rest := k.Value[digits:]
	n, err := strconv.ParseUint(string(k.Value[:digits]), 10, 64)
	if err != nil {
		return Finding{}, false
	}
	switch {
	case len(rest) == 0:
		return j.integer(k, n), true
	case rest[0] == '.' && len(rest) > 1 && digitsAt(rest[1:]) == len(rest)-1:
		return j.float(k)
	case rest[0] == '-':
		return j.pidThread(k, n, rest[1:])
	case rest[0] == ':' && isDigits(rest[1:]):
		if isBridge(n) {
			return j.bridge(k, nil, "wrapped as PredisLock writes: number:pid"), true
		}
		f := j.expiry(k, ExpiryS, protocol.RedisDoc, k.Value[:digits], nil)
		f.Note = "seconds:pid, as PredisLock writes"
		return f, f.Confidence > None
	case rest[0] == '|' && isUUID(rest[1:]):
		return Finding{
			Format: UnknownFormat, State: UnknownState, Confidence: Medium,
			Note: "ms|uuid of a copied Spring helper that overwrites any value it meets; nothing can share a key with it",
		}, true
	}
	return Finding{}, false
}

// integer is a bare number: seconds, milliseconds or nanoseconds near now, a bridge value, or a counter.
func (j Judge) integer(k *Look, n uint64) Finding {
	switch {
	case isBridge(n):
		return j.bridge(k, nil, "")
	case j.plausible(n, time.Millisecond):
		return j.expiry(k, ExpiryMS, protocol.JedisMS, k.Value, jedisMS)
	case j.plausible(n, time.Second):
		return j.expiry(k, ExpiryS, protocol.RedisDoc, k.Value, redisDoc)
	case j.plausible(n, time.Nanosecond):
		return j.expiry(k, ExpiryNS, protocol.UnixNano, k.Value, unixNS)
	case j.plausible(n, time.Microsecond) && j.named(k):
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: "reads as microseconds, which no known lock writes"}
	case n == 1 && k.TTL == NoTTL && j.named(k):
		return Finding{
			Format: TokenNoTTL, State: Held, Confidence: Medium, Dialects: redisObjects,
			Note: "redis-objects without expiration, or a bare flag: held until deleted; redis-py takes it over at once",
		}
	case !j.named(k):
		return nothing
	case k.TTL != NoTTL:
		f := j.token(k, Low)
		f.Confidence = Medium
		f.Note = "a small number with a TTL: a thread id, or a counter"
		return f
	default:
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: "a number that is no plausible expiry in any unit"}
	}
}

// float is a number with a point: seconds, as Python and Ruby print them.
func (j Judge) float(k *Look) (Finding, bool) {
	if string(k.Value) == protocol.RedisPyFloat.Forever {
		return Finding{
			Format: ExpiryFloatS, State: Held, Expires: redisPyForever * protocol.Instant(time.Second), HasExpiry: true,
			Confidence: High, Dialects: redispyFloat, Note: "redis-py's lock without timeout: held until released, for ever if its holder crashed",
		}, true
	}
	f := j.expiry(k, ExpiryFloatS, protocol.RedisPyFloat, k.Value, floatS)
	return f, f.Confidence > None
}

// pidThread is what follows the first dash of number-pid-thread.
func (j Judge) pidThread(k *Look, n uint64, owner []byte) (Finding, bool) {
	pid, thread, found := bytes.Cut(owner, []byte("-"))
	if !found || !isDigits(pid) || !isDigits(thread) {
		return Finding{}, false
	}
	if isBridge(n) {
		return j.bridge(k, secPID, "wrapped for sec-pid-thread"), true
	}
	if !j.plausible(n, time.Second) {
		return Finding{}, false
	}
	f := j.expiry(k, SecPIDThread, protocol.SecPIDThread, k.Value, secPID)
	f.Confidence = max(f.Confidence, Medium)
	return f, true
}

// quoted is a number in double quotes, which ServiceStack writes when it takes a lock over.
func (j Judge) quoted(k *Look) Finding {
	v := k.Value
	if len(v) < 3 || v[len(v)-1] != '"' || !isDigits(v[1:len(v)-1]) {
		return j.text(k)
	}
	n, err := strconv.ParseUint(string(v[1:len(v)-1]), 10, 64)
	if err != nil || !j.plausible(n, time.Millisecond) {
		return nothing
	}
	f := j.expiry(k, ExpiryMS, protocol.ServiceStack, v, serviceStack)
	f.Note = "in quotes, as ServiceStack writes on a takeover; jedis-ms clients throw on it"
	return f
}

// uuidNumber is uuid:number: an expiry behind its owner, a bridge value, or a thread of a process.
func (j Judge) uuidNumber(k *Look) (Finding, bool) {
	const uuid = 36
	if len(k.Value) < uuid+2 || k.Value[uuid] != ':' || !isUUID(k.Value[:uuid]) || !isDigits(k.Value[uuid+1:]) {
		return Finding{}, false
	}
	n, err := strconv.ParseUint(string(k.Value[uuid+1:]), 10, 64)
	switch {
	case err != nil:
		return Finding{}, false
	case isBridge(n):
		return j.bridge(k, jedisUUID, "wrapped for jedis-uuid"), true
	case j.plausible(n, time.Millisecond):
		f := j.expiry(k, UUIDExpiryMS, protocol.JedisUUID, k.Value, jedisUUID)
		f.Confidence = High // nothing else has this form
		return f, true
	}
	return j.token(k, Medium), true // uuid:thread id
}

// binarySeconds is eight bytes of a little-endian integer: ServiceStack's DistributedLock.
func (j Judge) binarySeconds(k *Look) (Finding, bool) {
	if len(k.Value) != 8 {
		return Finding{}, false
	}
	n := binary.LittleEndian.Uint64(k.Value)
	if !j.plausible(n, time.Second) {
		return Finding{}, false
	}
	f := j.expiry(k, ExpiryS, protocol.RedisDoc, strconv.AppendUint(nil, n, 10), nil)
	f.Note = "8 bytes little-endian, as ServiceStack's DistributedLock writes; no other client reads it"
	return f, true
}

// text is everything else: a random token, or words.
func (j Judge) text(k *Look) Finding {
	switch {
	case bytes.HasPrefix(k.Value, []byte("ADDED:")) && bytes.IndexByte(k.Value, '@') > 0:
		f := j.token(k, Medium)
		f.Note = "as ShedLock writes"
		return f
	case looksRandom(k.Value):
		return j.token(k, Low)
	case j.named(k) && k.TTL != NoTTL:
		f := j.token(k, Low)
		f.Confidence = Medium
		f.Note = "a text that is no random token; its release may delete another's lock"
		return f
	case j.named(k):
		return Finding{Format: UnknownFormat, State: UnknownState, Confidence: Low, Note: "a text without TTL that no lock is known to write"}
	}
	return nothing
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
func (j Judge) expiry(k *Look, format Format, d *protocol.Dialect, value []byte, dialects []string) Finding {
	text := string(value)
	at, ok := d.ExpiresAt(text)
	if !ok || !j.inWindow(at) {
		return nothing
	}
	f := Finding{Format: format, State: Held, Expires: at, HasExpiry: true, Dialects: dialects}
	past := j.Now.Sub(at)
	switch {
	case d.Judge(text, j.Now, "") == protocol.Live:
	case past > j.GhostAfter:
		f.State = Ghost
	default:
		f.State = Expired
	}
	f.Confidence = j.sureOf(k, format, past)
	if past < -longLease {
		f.Note = "a lease longer than a day: a clock far ahead, or no lock"
	}
	return f
}

// sureOf weighs an expiry: past is how long ago it was, negative for one to come.
func (j Judge) sureOf(k *Look, format Format, past time.Duration) Confidence {
	near := past > -longLease && past < longLease
	sure := Medium
	switch {
	case j.named(k):
		sure = High
	case past < -longLease:
		sure = Low // locks are not held for days; whatever ends next year is something else
	case !near && (format == ExpiryS || format == ExpiryNS):
		sure = Low // ten digits are often an id, and nineteen a snowflake
	}
	if k.TTL == NoTTL {
		return sure
	}
	// The old scheme sets no TTL. Those who add one set it to the same moment.
	if off := past + time.Duration(k.TTL)*time.Millisecond; off > agrees || off < -agrees {
		if !j.named(k) {
			sure = Low
		}
	}
	return sure
}

// named tells that the key's name, or the operator, says that it is a lock.
func (j Judge) named(k *Look) bool { return j.Chosen || soundsLikeLock(k.Key) }

// plausible tells that n units since the epoch is a moment at which a lock may expire.
func (j Judge) plausible(n uint64, unit time.Duration) bool {
	return n <= math.MaxInt64/uint64(unit) && j.inWindow(protocol.Instant(n*uint64(unit)))
}

func (j Judge) inWindow(at protocol.Instant) bool {
	return at >= firstRedis && at.Sub(j.Now) <= farthest
}

// mayBeLock tells from the names of a hash's fields whether its values are worth a look.
func (j Judge) mayBeLock(k *Look) bool {
	if len(k.Fields) == 0 || len(k.Fields) > MaxFields {
		return false
	}
	for _, f := range k.Fields {
		if isRedissonHolder(f.Name) || looksRandom(f.Name) {
			return true
		}
	}
	return j.named(k)
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
	if len(k.Fields) == 2 && mode == "" || !isDigits(holder.Value) || len(holder.Value) > 10 {
		return nothing
	}
	f := Finding{State: Held, Confidence: High}
	switch thread := holder.Name; {
	case isRedissonHolder(thread):
		f.Format = Redisson
		if mode != "" {
			f.Note = "a read-write lock, held to " + mode
		}
	case mode != "":
		return nothing
	case looksRandom(holder.Name):
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
