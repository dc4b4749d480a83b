package traffic

import (
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Apply replays a command and returns what it did to keys, in a slice that the next call reuses.
func (k *Keys) Apply(l *Command) []Effect {
	k.effects = k.effects[:0]
	w := l.Words
	id := Key{DB: l.DB}
	if len(w) > 1 {
		id.Name = w[1]
	}
	if l.Cut && !RunsScript(w[0]) {
		k.cut(l, id)
		return k.effects
	}
	switch w[0] {
	case "GET":
		k.emit(before(OpGet, id, k.look(id, l.At)))
	case "SETNX":
		if len(w) == 3 {
			k.take(l, id, OpSetNX, w[2], 0)
		}
	case "SET":
		k.set(l, id)
	case "GETSET":
		if len(w) >= 3 {
			k.write(l, id, OpGetSet, w[2], 0, false)
		}
	case "DEL", "UNLINK":
		for _, name := range w[1:] {
			k.del(l, Key{l.DB, name})
		}
	case "GETDEL":
		switch k.look(id, l.At).kind {
		case hash: // WRONGTYPE
		case there:
			k.forget(id)
		default:
			k.del(l, id)
		}
	case "SETEX", "PSETEX":
		if len(w) == 4 {
			k.write(l, id, OpSet, w[3], l.ttlOf(w[0], w[2]), false)
		}
	case "EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "GETEX", "PERSIST":
		k.expire(l, id)
	case "HSET", "HSETNX", "HMSET", "HINCRBY":
		k.hashAdd(l, id)
	case "MSET":
		for i := 1; i+1 < len(w); i += 2 {
			k.write(l, Key{l.DB, w[i]}, OpSet, w[i+1], 0, false)
		}
	case "FLUSHALL":
		k.flush(-1)
	case "FLUSHDB":
		k.flush(l.DB)
	case "SWAPDB", "RESTORE-ASKING", "DEBUG", "FUNCTION", "MODULE":
		k.forgetAll()
	default:
		k.other(l, id)
	}
	return k.effects
}

// other is a command that is not replayed: its keys become unknown, unless it only reads.
func (k *Keys) other(l *Command, id Key) {
	if readsOnly[l.Words[0]] || len(l.Words) < 2 {
		return
	}
	k.forget(id)
	for _, w := range l.Words[2:] {
		if _, tracked := k.m[Key{l.DB, w}]; tracked {
			k.forget(Key{l.DB, w})
		}
	}
}

// cut is a command of which a part is missing: what it wrote is not known, or which keys.
func (k *Keys) cut(l *Command, id Key) {
	switch l.Words[0] {
	case "DEL", "UNLINK", "MSET", "MSETNX":
		k.forgetAll()
	default:
		k.other(l, id)
	}
}

// readsOnly are the frequent commands that change no key.
var readsOnly = set(`PING ECHO AUTH HELLO SELECT QUIT RESET INFO TIME COMMAND CLIENT CONFIG SCAN KEYS DBSIZE TYPE EXISTS
TTL PTTL EXPIRETIME PEXPIRETIME MGET STRLEN GETRANGE SUBSTR HGET HMGET HGETALL HEXISTS HLEN HKEYS HVALS HSCAN HSTRLEN
HRANDFIELD LLEN LRANGE LINDEX LPOS SMEMBERS SISMEMBER SMISMEMBER SCARD SSCAN SINTER SUNION SDIFF SRANDMEMBER ZRANGE ZRANK
ZSCORE ZCARD ZCOUNT ZRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZSCAN ZMSCORE XLEN XRANGE XREVRANGE XREAD XINFO XPENDING
SUBSCRIBE UNSUBSCRIBE PSUBSCRIBE PUNSUBSCRIBE SSUBSCRIBE SUNSUBSCRIBE PUBLISH SPUBLISH PUBSUB WATCH UNWATCH MULTI EXEC
DISCARD EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO SCRIPT OBJECT MEMORY ROLE WAIT WAITAOF CLUSTER READONLY READWRITE
ASKING BITCOUNT GETBIT BITPOS PFCOUNT SLOWLOG LATENCY ACL LASTSAVE DUMP RANDOMKEY TOUCH REPLCONF PSYNC SAVE BGSAVE`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

func (k *Keys) emit(e Effect) { k.effects = append(k.effects, e) }

// before fills in what was on the key.
func before(op Op, id Key, e entry) Effect {
	out := Effect{Op: op, Key: id}
	switch e.kind {
	case absent:
		out.OldKnown = true
	case text:
		out.OldKnown, out.There, out.Old = true, true, e.value
	case there, hash:
		out.There = true
	}
	return out
}

// take is SETNX and SET NX.
func (k *Keys) take(l *Command, id Key, op Op, value string, ttl time.Duration) {
	old := k.look(id, l.At)
	e := before(op, id, old)
	e.Value, e.TTL = value, ttl
	switch old.kind {
	case absent:
		e.Done = Yes
		k.put(id, entry{kind: text, value: value, expires: until(l.At, ttl)}, true)
	case unknown:
		k.put(id, entry{kind: there}, true)
	default:
		e.Done = No
	}
	k.emit(e)
}

// SetOptions are those of a SET.
type SetOptions struct {
	NX, XX, Get, Keep bool
	Timed             bool          // it sets a TTL
	TTL               time.Duration // 0 where it cannot be read
}

// SetOptions reads what stands behind the value of a SET.
func (l *Command) SetOptions() (o SetOptions) {
	for i := 3; i < len(l.Words); i++ {
		switch option := strings.ToUpper(l.Words[i]); option {
		case "NX":
			o.NX = true
		case "XX":
			o.XX = true
		case "KEEPTTL":
			o.Keep = true
		case "GET":
			o.Get = true
		case "EX", "PX", "EXAT", "PXAT":
			o.Timed = true
			if i++; i == len(l.Words) {
				return o
			}
			o.TTL = l.ttlOf(option, l.Words[i])
		}
	}
	return o
}

func (k *Keys) set(l *Command, id Key) {
	w := l.Words
	if len(w) < 3 {
		return
	}
	switch o := l.SetOptions(); {
	case o.NX:
		k.take(l, id, OpTake, w[2], o.TTL)
	case o.XX && k.look(id, l.At).kind == absent:
		k.emit(Effect{Op: OpSet, Key: id, Value: w[2], OldKnown: true, Done: No})
	case o.XX && k.look(id, l.At).kind == unknown:
		k.forget(id)
	case o.Get && !o.XX:
		k.write(l, id, OpGetSet, w[2], o.TTL, o.Keep)
	default:
		k.write(l, id, OpSet, w[2], o.TTL, o.Keep)
	}
}

// write is an unconditional SET, or GETSET, which the server refuses on another type.
func (k *Keys) write(l *Command, id Key, op Op, value string, ttl time.Duration, keep bool) {
	old := k.look(id, l.At)
	e := before(op, id, old)
	e.Value, e.TTL, e.Done = value, ttl, Yes
	if op == OpGetSet && old.kind == hash {
		e.Done = No
		k.emit(e)
		return
	}
	next := entry{kind: text, value: value, expires: until(l.At, ttl)}
	if keep && old.kind == unknown {
		next = entry{kind: unknown} // with a TTL or without
	} else if keep {
		next.expires = old.expires
	}
	// Outside of scripts and transactions a plain SET is a cache's, not a lock's; a tracked key is kept anyway.
	k.put(id, next, l.InScript() || op == OpGetSet)
	k.emit(e)
}

func (k *Keys) del(l *Command, id Key) {
	old := k.look(id, l.At)
	e := before(OpDel, id, old)
	switch old.kind {
	case absent:
		e.Done = No
	case unknown:
		_, tracked := k.m[id]
		k.put(id, entry{kind: absent}, tracked)
	default:
		e.Done = Yes
		k.put(id, entry{kind: absent}, true)
	}
	k.emit(e)
}

// expire handles EXPIRE and its like. A TTL that is not positive deletes the key.
func (k *Keys) expire(l *Command, id Key) {
	old := k.look(id, l.At)
	e, tracked := k.m[id]
	w := l.Words
	switch {
	case !tracked || old.kind == absent || w[0] == "GETEX" && len(w) == 2 && old.kind != unknown:
		return
	case old.kind == unknown || w[0] == "GETEX" || w[0] != "PERSIST" && len(w) != 3: // or with NX, XX, GT, LT
		k.forget(id)
		return
	case w[0] == "PERSIST":
		e.expires = 0
		k.m[id] = e
		return
	}
	ttl := l.ttlOf(w[0], w[2])
	if ttl <= 0 {
		k.del(l, id)
		return
	}
	e.expires = until(l.At, ttl)
	k.m[id] = e
	out := before(OpExpire, id, old)
	out.TTL, out.Done = ttl, Yes
	k.emit(out)
}

func (k *Keys) hashAdd(l *Command, id Key) {
	if len(l.Words) < 4 {
		return
	}
	old := k.look(id, l.At)
	e := before(OpHashAdd, id, old)
	e.Value, e.Done = l.Words[2], Yes
	next := entry{kind: hash, expires: old.expires}
	switch old.kind {
	case text:
		e.Done = No // WRONGTYPE
		next = old
	case unknown:
		e.Done = Unsettled
		next = entry{kind: there}
	}
	k.put(id, next, l.InScript())
	k.emit(e)
}

func until(now protocol.Instant, ttl time.Duration) protocol.Instant {
	if ttl <= 0 {
		return 0
	}
	return now.Add(ttl)
}

// ttlOf reads the number behind a command or option such as EX, PEXPIRE or PXAT: milliseconds where its name begins with P, an instant where it
// ends with AT. What overflows or cannot be read is no TTL.
func (l *Command) ttlOf(name, number string) time.Duration {
	n, err := strconv.ParseInt(number, 10, 64)
	unit := time.Second
	if name[0] == 'P' {
		unit = time.Millisecond
	}
	if err != nil || n > int64(1<<62)/int64(unit) || n < -int64(1<<62)/int64(unit) {
		n = 0
	}
	ttl := time.Duration(n) * unit
	if strings.HasSuffix(name, "AT") {
		ttl -= time.Duration(l.At)
	}
	return ttl
}
