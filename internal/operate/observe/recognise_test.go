package observe

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// epoch is when the streams of these tests begin, on the server's clock.
const epoch = protocol.Instant(1772366400 * int64(time.Second))

// tape feeds an observer a stream. The keys of the server are known: there are none at the start.
type tape struct {
	o       *Observer
	at      protocol.Instant
	scripts traffic.Scripts
}

func newTape(opts Options) *tape {
	t := &tape{o: New(opts), at: epoch}
	t.o.Keys.Scanning(0)
	t.o.Keys.Complete()
	return t
}

// run takes a command in, a millisecond after the one before.
func (t *tape) run(addr string, words ...string) {
	t.wait(time.Millisecond)
	c := &traffic.Command{At: t.at, Addr: addr, Words: words}
	t.scripts.Attribute(c)
	t.o.Take(c)
}

func (t *tape) wait(d time.Duration) { t.at = t.at.Add(d) }

func (t *tape) report() Report {
	t.o.Finish()
	return t.o.Report()
}

// ms, sec: the server's clock plus a duration, as the clients write it.
func (t *tape) ms(d time.Duration) string {
	return strconv.FormatInt(int64(t.at.Add(d+time.Millisecond))/1e6, 10)
}

func (t *tape) sec(d time.Duration) string {
	return strconv.FormatInt(int64(t.at.Add(d+time.Millisecond))/1e9, 10)
}

func rowOf(t *testing.T, r Report, addr string) Row {
	t.Helper()
	for _, row := range r.Clients {
		if row.Addr == addr {
			return row
		}
	}
	require.Fail(t, "no row", "%s in %+v", addr, r.Clients)
	return Row{}
}

// A client that spells SETNX as SET NX, and GETSET as SET GET, is what the others are, with lease and skew.
func TestSetSpelledOtherwise(t *testing.T) {
	tp := newTape(Options{Lease: 30 * time.Second})
	for range 5 {
		tp.run("1.1.1.1:1", "SET", "lock:a", tp.ms(35*time.Second), "NX")
		tp.run("2.2.2.2:1", "SETNX", "lock:a", tp.ms(30*time.Second))
		tp.run("2.2.2.2:1", "GET", "lock:a")
		tp.run("1.1.1.1:1", "DEL", "lock:a")
		tp.wait(100 * time.Millisecond)
	}
	tp.run("1.1.1.1:1", "SET", "lock:a", tp.ms(-time.Second), "NX")
	tp.run("3.3.3.3:1", "SET", "lock:a", tp.ms(30*time.Second), "NX")
	tp.run("3.3.3.3:1", "GET", "lock:a")
	tp.wait(40 * time.Millisecond)
	tp.run("3.3.3.3:1", "SET", "lock:a", tp.ms(30*time.Second), "GET")
	r := tp.report()
	row := rowOf(t, r, "1.1.1.1:1")
	assert.Equal(t, "legacy jedis-ms", row.Kind+" "+row.Dialect)
	require.NotNil(t, row.LeaseMS)
	assert.EqualValues(t, 30_000, *row.LeaseMS)
	require.NotNil(t, row.SkewMS)
	assert.InDelta(t, 5000, *row.SkewMS, 5)
	assert.Equal(t, map[string]int64{"SET NX": 6}, row.Sent)
	assert.EqualValues(t, 6, row.Acquired)
	assert.Equal(t, map[string]int64{"SET GET": 1, "SET NX": 1}, rowOf(t, r, "3.3.3.3:1").Sent)
	assert.EqualValues(t, 1, rowOf(t, r, "3.3.3.3:1").Acquired)
	assert.EqualValues(t, 5, r.LegacyOps, "SETNX and GETSET, as the server counts them")
	assert.EqualValues(t, 8, r.LegacySets)
	assert.Zero(t, r.OtherOps)
	assert.EqualValues(t, 1, rowOf(t, r, "3.3.3.3:1").Pauses)
	assert.InDelta(t, 41, rowOf(t, r, "3.3.3.3:1").PauseMaxMS, 0.1, "from GET to SET GET")
}

// A time that SET NX writes with a TTL is a token: the TTL is the lease, and what is left is the clock.
func TestTimeAsAToken(t *testing.T) {
	tp := newTape(Options{})
	for range 6 {
		tp.run("1.1.1.1:1", "SET", "lock.npm", tp.ms(10*time.Second-3*time.Second), "PX", "10000", "NX")
		tp.run("2.2.2.2:1", "SET", "lock.npm", tp.ms(10*time.Second), "PX", "10000", "NX")
		tp.run("1.1.1.1:1", "DEL", "lock.npm")
		tp.run("4.4.4.4:1", "SET", "lock:machinery", strconv.FormatInt(int64(tp.at)+5e9, 10), "PX", "5000", "NX")
		tp.run("4.4.4.4:1", "DEL", "lock:machinery")
		tp.wait(777 * time.Millisecond)
	}
	ns := func(d time.Duration) string { return strconv.FormatInt(int64(tp.at.Add(d)), 10) }
	tp.run("5.5.5.5:1", "SET", "lock:nano", ns(-time.Second), "PX", "400", "NX") // a takeover by machinery, whose EXPIRE rounds up
	tp.run("4.4.4.4:1", "SET", "lock:nano", ns(5*time.Second), "PX", "5000", "NX")
	tp.run("4.4.4.4:1", "GET", "lock:nano")
	tp.run("4.4.4.4:1", "GETSET", "lock:nano", ns(5*time.Second))
	tp.run("4.4.4.4:1", "EXPIRE", "lock:nano", "6")
	r := tp.report()
	assert.EqualValues(t, 5000, *rowOf(t, r, "4.4.4.4:1").LeaseMS)
	for addr, skew := range map[string]float64{"1.1.1.1:1": -3000, "2.2.2.2:1": 0} {
		row := rowOf(t, r, addr)
		assert.Equal(t, "modern set-nx-px", row.Kind+" "+row.Dialect)
		assert.EqualValues(t, 10_000, *row.LeaseMS)
		assert.Equal(t, "ttl", row.LeaseFrom)
		require.NotNil(t, row.SkewMS, addr)
		assert.InDelta(t, skew, *row.SkewMS, 5)
		assert.Equal(t, map[string]int64{"SET NX": 6}, row.Sent)
	}
	assert.Equal(t, "legacy unix-ns", rowOf(t, r, "4.4.4.4:1").Kind+" "+rowOf(t, r, "4.4.4.4:1").Dialect, "machinery reads what it finds")
	assert.Empty(t, r.Hazards)

	tp = newTape(Options{}) // but one that reads what it finds is no token lock
	tp.run("1.1.1.1:1", "SET", "lock.x", tp.ms(10*time.Second), "PX", "10000", "NX")
	tp.run("2.2.2.2:1", "SET", "lock.x", tp.ms(10*time.Second), "PX", "10000", "NX")
	tp.run("2.2.2.2:1", "GET", "lock.x")
	assert.Equal(t, "jedis-ms", rowOf(t, tp.report(), "2.2.2.2:1").Dialect)
}

// SETNX and EXPIRE together are a lock that lives by its TTL, whatever its value; SETNX alone is not.
func TestSetNXAndExpire(t *testing.T) {
	tp := newTape(Options{})
	for i := range 4 {
		token := fmt.Sprintf("6b1e0b0c-6f0c-4a8b-9d0a-0f1e2d3c4b%02d", i)
		tp.run("1.1.1.1:1", "SETNX", "lock:redback", token)
		tp.run("1.1.1.1:1", "EXPIRE", "lock:redback", "60")
		tp.run("2.2.2.2:1", "SETNX", "lock:redback", token[:30]+"999999") // has never won
		tp.run("1.1.1.1:1", "GET", "lock:redback")
		tp.run("1.1.1.1:1", "DEL", "lock:redback")
		tp.run("3.3.3.3:1", "SETNX", "lock_net", "1")
		tp.run("3.3.3.3:1", "EXPIRE", "lock_net", "15")
		tp.run("3.3.3.3:1", "DEL", "lock_net")
		tp.run("7.7.7.7:1", "EVALSHA", "abc", "1", "lock:lua", token, "2000") // as redis-py 2.10.6 does by default
		tp.run("lua", "SETNX", "lock:lua", token)
		tp.run("lua", "PEXPIRE", "lock:lua", "2000")
		tp.run("7.7.7.7:1", "EVALSHA", "def", "1", "lock:lua", token)
		tp.run("lua", "GET", "lock:lua")
		tp.run("lua", "DEL", "lock:lua")
		tp.run("4.4.4.4:1", "SETNX", "lock:article", token)
		tp.run("4.4.4.4:1", "DEL", "lock:article")
		tp.run("5.5.5.5:1", "SETNX", "lock_flag", "1")
		tp.run("5.5.5.5:1", "DEL", "lock_flag")
		tp.run("6.6.6.6:1", "SETNX", "visits", "1")
	}
	r := tp.report()
	for addr, want := range map[string]string{
		"1.1.1.1:1": "modern setnx-expire", "2.2.2.2:1": "modern setnx-expire", "3.3.3.3:1": "modern setnx-expire", "7.7.7.7:1": "modern setnx-expire",
		"4.4.4.4:1": "legacy setnx-uuid", "5.5.5.5:1": "legacy setnx", "6.6.6.6:1": "unknown setnx",
	} {
		row := rowOf(t, r, addr)
		assert.Equal(t, want, row.Kind+" "+row.Dialect, addr)
	}
	assert.EqualValues(t, 60_000, *rowOf(t, r, "1.1.1.1:1").LeaseMS)
	assert.Equal(t, map[string]int64{"SETNX": 4}, rowOf(t, r, "4.4.4.4:1").Sent)
}

// On keys that were asked for, every SETNX counts, whatever it writes: a flag, or bytes.
func TestEveryValueCountsOnChosenKeys(t *testing.T) {
	tp := newTape(Options{Match: func(key string) bool { return strings.HasPrefix(key, "orders:") }})
	tp.run("1.1.1.1:1", "SETNX", "orders:1", "1")
	tp.run("1.1.1.1:1", "DEL", "orders:1")
	tp.run("2.2.2.2:1", "SETNX", "orders:2", "\xac\xed\x00\x05")
	tp.run("3.3.3.3:1", "SETNX", "orders:3", "a word")
	tp.run("4.4.4.4:1", "SETNX", "cache:1", "1")
	tp.run("5.5.5.5:1", "SETNX", "orders:5", protocol.JBoot.BridgeValue(int64(tp.at.Add(time.Minute))/1e6, ""))
	r := tp.report()
	assert.EqualValues(t, 4, r.LegacyOps)
	assert.EqualValues(t, 1, r.OtherOps)
	for addr, want := range map[string]string{"1.1.1.1:1": "legacy setnx", "2.2.2.2:1": "legacy setnx", "3.3.3.3:1": "legacy setnx", "5.5.5.5:1": "legacy jboot"} {
		row := rowOf(t, r, addr)
		assert.Equal(t, want, row.Kind+" "+row.Dialect, addr)
	}
	assert.Len(t, r.Clients, 4)
}

// Clients that SET what they had just read have a name of their own, and what they overwrite is told.
func TestBlindSetters(t *testing.T) {
	t.Run("node-resque", func(t *testing.T) {
		tp := newTape(Options{})
		queue := "resque:lock:job:q:[1]"
		take := func(addr string) {
			tp.run(addr, "SETNX", queue, tp.sec(4*time.Second))
			tp.run(addr, "GET", queue)
		}
		tp.run("9.9.9.9:1", "SETNX", queue, tp.sec(-time.Second))
		take("1.1.1.1:1")
		take("2.2.2.2:1")
		tp.run("1.1.1.1:1", "SET", queue, tp.sec(4*time.Second))
		tp.run("1.1.1.1:1", "EXPIRE", queue, "3")
		tp.wait(time.Second)
		tp.run("2.2.2.2:1", "SET", queue, tp.sec(4*time.Second))
		tp.run("2.2.2.2:1", "EXPIRE", queue, "3")
		tp.run("1.1.1.1:1", "DEL", queue)
		r := tp.report()
		for _, addr := range []string{"1.1.1.1:1", "2.2.2.2:1"} {
			row := rowOf(t, r, addr)
			assert.Equal(t, "legacy blind-set", row.Kind+" "+row.Dialect)
			assert.EqualValues(t, 1, row.Acquired)
			assert.Equal(t, map[string]int64{"SETNX": 1, "SET": 1}, row.Sent)
		}
		assert.EqualValues(t, 1, r.Hazards["blind-set"])
		assert.Zero(t, r.Hazards["clobber"])
		require.Len(t, r.Overlaps, 1)
		assert.Equal(t, "blind-set", r.Overlaps[0].Cause)
		assert.InDelta(t, 1002, rowOf(t, r, "2.2.2.2:1").PauseMaxMS, 3)
	})
	t.Run("celery_once", func(t *testing.T) {
		tp := newTape(Options{})
		tp.run("1.1.1.1:1", "GET", "qo_add_a-1")
		tp.run("2.2.2.2:1", "GET", "qo_add_a-1")
		tp.run("1.1.1.1:1", "SETEX", "qo_add_a-1", "60", tp.sec(time.Minute))
		tp.run("2.2.2.2:1", "SETEX", "qo_add_a-1", "60", tp.sec(time.Minute))
		tp.run("3.3.3.3:1", "GET", "qo_add_a-1") // is told that it is queued
		r := tp.report()
		assert.Len(t, r.Clients, 2)
		for _, row := range r.Clients {
			assert.Equal(t, "legacy blind-set", row.Kind+" "+row.Dialect)
			assert.EqualValues(t, 60_000, *row.LeaseMS)
			require.NotNil(t, row.SkewMS)
			assert.LessOrEqual(t, math.Abs(*row.SkewMS), *row.SkewErrorMS)
		}
		assert.EqualValues(t, 1, r.Hazards["blind-set"])
		assert.EqualValues(t, 2, r.LegacySets)
	})
	t.Run("two on one host", func(t *testing.T) {
		tp := newTape(Options{Group: ByHost})
		tp.run("1.1.1.1:1", "GET", "qo_add_a-1")
		tp.run("1.1.1.1:2", "GET", "qo_add_a-1")
		tp.run("1.1.1.1:1", "SETEX", "qo_add_a-1", "60", tp.sec(time.Minute))
		tp.run("1.1.1.1:2", "SETEX", "qo_add_a-1", "60", tp.sec(time.Minute))
		r := tp.report()
		require.Len(t, r.Clients, 1)
		assert.EqualValues(t, 2, r.Clients[0].Acquired)
		assert.Equal(t, map[string]int64{"SETEX": 2}, r.Clients[0].Sent)
	})
	t.Run("node-resque, never in each other's way", func(t *testing.T) {
		tp := newTape(Options{})
		for _, key := range []string{"resque:lock:job:q:[1]", "lock:order"} {
			addr := key[:8] + ":1"
			for range 3 {
				tp.run(addr, "SETNX", key, tp.sec(4*time.Second))
				tp.run(addr, "EXPIRE", key, "3")
				tp.run(addr, "DEL", key)
			}
		}
		r := tp.report()
		assert.Equal(t, "blind-set", rowOf(t, r, "resque:l:1").Dialect, "by the key's name")
		assert.Equal(t, "redis-doc", rowOf(t, r, "lock:ord:1").Dialect, "nothing tells")
	})
	t.Run("a holder that renews, and a cache, are none", func(t *testing.T) {
		tp := newTape(Options{})
		tp.run("1.1.1.1:1", "GET", "lock:a") // its acquisition came before the window
		tp.o.Keys.Learn(0, "lock:b", tp.ms(20*time.Second))
		tp.run("1.1.1.1:1", "GET", "lock:b")
		tp.run("1.1.1.1:1", "SET", "lock:b", tp.ms(30*time.Second))
		tp.run("2.2.2.2:1", "GET", "cache:a")
		tp.run("2.2.2.2:1", "SETEX", "cache:a", "60", tp.sec(time.Minute))
		tp.run("3.3.3.3:1", "SET", "lock:c", tp.ms(time.Minute)) // reads nothing
		for _, row := range tp.report().Clients {
			assert.NotEqual(t, "blind-set", row.Dialect, row.Addr)
		}
	})
}

// Clients of one host that do different things have a row each, also after two masters are merged.
func TestGroupsDoNotMixKinds(t *testing.T) {
	tp := newTape(Options{Group: ByHost})
	for range 3 {
		tp.run("10.0.0.1:1", "SETNX", "lock:a", tp.ms(30*time.Second))
		tp.run("10.0.0.1:1", "DEL", "lock:a")
		tp.run("10.0.0.1:2", "SETNX", "lock:b", tp.sec(30*time.Second))
		tp.run("10.0.0.1:2", "DEL", "lock:b")
		tp.run("10.0.0.1:3", "SET", "lock:c", "q3VzZXIgdG9rZW4gMTIzNDU2Nzg5MA==", "PX", "5000", "NX")
		tp.run("10.0.0.1:4", "DEL", "lock:c") // another connection of a pool
	}
	r := tp.report()
	kinds := func(r Report) (all []string) {
		for _, row := range r.Clients {
			all = append(all, fmt.Sprintf("%s %s %s %d", row.Addr, row.Kind, row.Dialect, row.Acquired))
		}
		return all
	}
	want := []string{"10.0.0.1 legacy jedis-ms 3", "10.0.0.1 legacy redis-doc 3", "10.0.0.1 modern set-nx-px 3"}
	assert.ElementsMatch(t, want, kinds(r))
	merged := observers{tp.o, tp.o}.report()
	assert.ElementsMatch(t, []string{"10.0.0.1 legacy jedis-ms 6", "10.0.0.1 legacy redis-doc 6", "10.0.0.1 modern set-nx-px 6"}, kinds(merged))
}

// Ghosts are those of the keys that were asked for, and no key beside a lock is one.
func TestGhostsAreBoundByMatch(t *testing.T) {
	o := New(Options{Match: func(key string) bool { return strings.HasPrefix(key, "orders:") }})
	past := strconv.FormatInt(int64(epoch)/1e6-3_600_000, 10)
	o.Keys.Scanning(0)
	for _, key := range []string{"orders:1", "other:1", protocol.ShareKey("orders:1"), protocol.YieldKey("orders:1")} {
		o.Keys.Learn(0, key, past)
	}
	o.Keys.Complete()
	o.Take(&traffic.Command{At: epoch, Addr: "1.1.1.1:1", Words: []string{"PING"}})
	r := o.Report()
	require.Len(t, r.Ghosts, 1)
	assert.Equal(t, "orders:1", r.Ghosts[0].Key)
}

// Keys beside a lock are no locks, however they are written.
func TestCompanionsAreNoLocks(t *testing.T) {
	tp := newTape(Options{})
	for _, key := range []string{protocol.GuardKey("lock:a"), protocol.ShareKey("lock:a"), protocol.YieldKey("lock:a"), protocol.FenceKey("lock:a")} {
		tp.run("1.1.1.1:1", "SETNX", key, tp.ms(time.Minute))
	}
	assert.Empty(t, tp.report().Clients)
}

// A SET XX that a script sends to a key that is gone asks for a right and sets nothing. The hand-over after it, and the one back,
// are an acquisition each.
func TestSetXXOfAnAbsentKeyTakesNothing(t *testing.T) {
	tp := newTape(Options{})
	const first, second = "8151691119356470599", "6808897779947178627"
	call := func(addr string, s *scripts.Script, args ...string) {
		tp.run(addr, append([]string{"EVALSHA", s.Digest, "4", "lock:a", "{lock:a}:guard", "{lock:a}:yield", "{lock:a}:queue"}, args...)...)
	}
	call("2.2.2.2:1", scripts.BridgeAcquire, second, "30000", "1250 ms plain 120")
	tp.run("lua", "MGET", "lock:a", "{lock:a}:guard") // in a gap for old clients
	call("1.1.1.1:1", scripts.BridgeAcquire, first, "30000", "1250 ms plain 120")
	tp.run("lua", "SET", "lock:a", first, "XX")
	tp.run("lua", "SET", "{lock:a}:guard", second, "NX", "PX", "3000")
	tp.run("lua", "SET", "lock:a", second, "PX", "3000")
	call("2.2.2.2:1", scripts.BridgeAcquire, second, "30000", "1250 ms plain 120")
	tp.run("lua", "SET", "{lock:a}:guard", second, "PX", "30000")
	tp.run("lua", "SET", "lock:a", second, "PX", "30000")
	call("2.2.2.2:1", scripts.BridgeRelease, second, "120", "1", "2")
	tp.run("lua", "SET", "lock:a", first, "NX")
	tp.run("lua", "SET", "{lock:a}:guard", first, "PX", "3000")
	tp.run("lua", "SET", "lock:a", first, "PX", "3000")
	call("1.1.1.1:1", scripts.BridgeRelease, first, "120", "1", "2")
	tp.run("lua", "DEL", "lock:a", "{lock:a}:guard")
	report := tp.report()
	for _, addr := range []string{"1.1.1.1:1", "2.2.2.2:1"} {
		row := rowOf(t, report, addr)
		assert.EqualValues(t, 1, row.Acquired, addr)
		assert.EqualValues(t, 1, row.Released, addr)
	}
	assert.Empty(t, report.Overlaps)
}
