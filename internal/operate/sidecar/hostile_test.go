package sidecar_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// Nothing that a service sends changes the lock of another service, and nothing brings a value onto a lock's key that is no token.
func TestNothingDamagesALock(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		t.Run(stage.String(), func(t *testing.T) {
			b := newBed(t, stage, "jedis-ms")
			one, two := b.client(b.sidecar("one", "")), b.client(b.sidecar("two", ""))
			b.redis.Do("SADD", "set", "a")
			b.redis.Do("ZADD", "sorted", 1, "a")
			b.redis.Do("SET", "text", "a")
			says(t, two, "1", "SETNX", "lock:a", ends(20*time.Second))
			token := b.redis.Value("lock:a")
			for _, line := range []string{
				"BITOP AND lock:a text", "BITFIELD lock:a SET u8 0 1", "SUNIONSTORE lock:a set", "SINTERSTORE lock:a set", "SDIFFSTORE lock:a set",
				"ZUNIONSTORE lock:a 1 sorted", "ZINTERSTORE lock:a 1 sorted", "ZDIFFSTORE lock:a 1 sorted", "ZRANGESTORE lock:a sorted 0 1",
				"SORT set ALPHA STORE lock:a", "sort set alpha store lock:a", "PFADD lock:a x", "PFMERGE lock:a x", "MIGRATE 127.0.0.1 1 lock:a 0 100",
				`MIGRATE 127.0.0.1 1 "" 0 100 KEYS lock:a`, "EXPIRE lock:a 99999999999", "PEXPIRE lock:a 9999999999999999", "EXPIREAT lock:a 9999999999",
				"EXPIRE lock:a 10 NX", "RENAME text lock:a", "COPY text lock:a REPLACE", "MOVE lock:a 1", "RESTORE lock:a 0 x REPLACE", "SET lock:a x KEEPTTL",
				"SET lock:a x XX GET", "GETEX lock:a PERSIST", "SETRANGE lock:a 0 x", "APPEND lock:a x", "MSETNX x 1 lock:a x", "MSETEX 1 lock:a x", "DELEX lock:a",
			} {
				args := redis.Args{}
				for _, word := range strings.Fields(line)[1:] {
					args = args.Add(strings.Trim(word, `"`))
				}
				if reply, err := one.Do(strings.Fields(line)[0], args...); err != nil || reply != int64(0) { // 0: it changes nothing
					require.ErrorContains(t, err, "ERR lockmigrate sidecar: ", line)
				}
				require.Equal(t, token, b.redis.Value("lock:a"), line)
				require.Less(t, b.redis.Do("PTTL", "lock:a"), int64(20_002), line)
			}
			says(t, two, "ERR value is not an integer or out of range", "EXPIRE", "lock:a", "soon")
			says(t, one, "0", "EXPIRE", "lock:a", 10)
			says(t, one, "0", "EXPIRE", "lock:a", -1) // a DEL, as the server does it
			assert.Equal(t, token, b.redis.Value("lock:a"))
			says(t, two, "1", "DEL", "lock:a")
			companion := protocol.GuardKey("lock:{b}")
			says(t, one, "1", "SETNX", companion, "x")
			assert.Equal(t, "x", b.redis.Value(companion), "it is no lock")
		})
	}
}

// A service in another database than the namespace's is told so: there its commands would protect nothing, and be looked after by nobody.
func TestAnotherDatabase(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	s := b.sidecar("one", "")
	c := b.client(s)
	says(t, c, "OK", "SELECT", 1)
	for _, args := range [][]any{{"SETNX", "lock:a", ends(time.Minute)}, {"GET", "lock:a"}, {"DEL", "lock:a"}} {
		_, err := c.Do(args[0].(string), args[1:]...)
		require.ErrorContains(t, err, "in database 1; the namespace's locks are in 0", "%v", args)
	}
	says(t, c, "OK", "SET", "other", "x")
	says(t, c, "OK", "select", 0)
	says(t, c, "1", "SETNX", "lock:a", ends(time.Minute))
	says(t, c, "OK", "SELECT", 2)
	says(t, c, "RESET", "RESET")
	says(t, c, "1", "DEL", "lock:a")
	says(t, c, "ERR DB index is out of range", "SELECT", 99)
	_, err := c.Do("SETNX", "lock:a", ends(time.Minute))
	require.ErrorContains(t, err, "in database 99", "refused rather than run where it may not be")

	// What the server does not do, or takes back, brings nobody home.
	says(t, c, "OK", "SELECT", 1)
	for _, lines := range [][][]any{
		{{"SELECT", "+0"}}, {{"SELECT", "00"}}, {{"SELECT", 0, "x"}}, {{"SELECT"}}, {{"MULTI"}, {"SELECT", 0}, {"DISCARD"}},
		{{"WATCH", "other"}, {"MULTI"}, {"SELECT", 0}, {"SET", "other", "x"}, {"DISCARD", "x"}, {"EXEC"}},
	} {
		for _, args := range lines {
			_, _ = c.Do(args[0].(string), args[1:]...)
		}
		_, err = c.Do("SETNX", "lock:a", ends(time.Minute))
		require.ErrorContains(t, err, "ERR lockmigrate sidecar: ", "%v", lines)
	}
	assert.Equal(t, int64(0), b.redis.Do("EXISTS", "lock:a"))
	says(t, c, "OK", "SELECT", 0)
	says(t, c, "OK", "MULTI")
	says(t, c, "QUEUED", "SELECT", 0)
	says(t, c, "QUEUED", "SETNX", "lock:a", ends(time.Minute))
	_, err = c.Do("EXEC")
	require.NoError(t, err)
	says(t, c, "1", "DEL", "lock:a")

	conn, err := redis.Dial("tcp", b.redis.Addr, redis.DialDatabase(3))
	require.NoError(t, err)
	defer conn.Close()
	pool := poolOf(t, b.redis.Addr, redis.DialDatabase(3))
	store := &stages.Store{Pool: pool, Namespace: "orders", ReplyTimeout: 5 * time.Second}
	require.NoError(t, store.Init(t.Context(), stages.Record{Namespace: "orders", Stage: stages.Modern, Patterns: []string{"lock:*"}, Dialect: "jedis-ms", Shortest: time.Second}))
	inThree := b.sidecar("three", "", func(o *sidecar.Options) { o.Pool, o.Database = pool, 3 })
	three := b.client(inThree)
	_, err = three.Do("SETNX", "lock:a", ends(time.Minute))
	require.ErrorContains(t, err, "in database 0; the namespace's locks are in 3")
	says(t, three, "OK", "SELECT", 3)
	says(t, three, "1", "SETNX", "lock:a", ends(time.Minute))
	there, err := redis.Int(conn.Do("EXISTS", "lock:a"))
	require.NoError(t, err)
	assert.Equal(t, 1, there)

	// A SELECT may have been refused: before AUTH, or for lack of the right. Nobody reads that, so the scripts select the database themselves.
	admin := b.redis.Conn()
	in := func(database int, key string) (there bool) {
		_, err := admin.Do("SELECT", database)
		require.NoError(t, err)
		there, err = redis.Bool(admin.Do("EXISTS", key))
		require.NoError(t, err)
		return there
	}
	b.redis.Do("ACL", "SETUSER", "service", "on", ">pw", "~*", "&*", "+@all")
	for i, login := range [][]any{{"AUTH", "service", "pw"}, {"hello", 2, "auth", "service", "pw"}} {
		says(t, admin, "OK", "CONFIG", "SET", "requirepass", "secret")
		early := b.client(inThree)
		_, err = early.Do("SELECT", 3)
		require.ErrorContains(t, err, "NOAUTH")
		_, err = early.Do(login[0].(string), login[1:]...)
		require.NoError(t, err)
		says(t, admin, "OK", "CONFIG", "SET", "requirepass", "")
		key := fmt.Sprint("lock:b", i)
		says(t, early, "1", "SETNX", key, ends(time.Minute))
		says(t, early, "0", "EXISTS", key) // in database 0, where it is
		require.True(t, in(3, key))
		says(t, early, "1", "DEL", key)
		require.False(t, in(3, key))
	}
	says(t, admin, "OK", "ACL", "SETUSER", "service", "-select")
	barred := b.client(inThree)
	says(t, barred, "OK", "AUTH", "service", "pw")
	_, err = barred.Do("SELECT", 3)
	require.ErrorContains(t, err, "NOPERM")
	for _, args := range [][]any{{"SETNX", "lock:c", ends(time.Minute)}, {"SET", "lock:c", "x", "NX", "PX", 1000}, {"GET", "lock:c"}, {"DEL", "lock:c"}, {"EXPIRE", "lock:c", 10}} {
		_, err = barred.Do(args[0].(string), args[1:]...)
		require.ErrorContains(t, err, "can't run this command", "%v", args)
	}
	require.False(t, in(0, "lock:c"), "a lock in a database where it protects nothing")
	require.False(t, in(3, "lock:c"))
	barred = b.client(s) // it stays at home, in database 0
	says(t, barred, "OK", "AUTH", "service", "pw")
	says(t, barred, "1", "SETNX", "lock:c", ends(time.Minute))
	says(t, barred, "1", "DEL", "lock:c")
}

// What changes how a connection answers leaves locks what they are.
func TestConnectionsThatAnswerOtherwise(t *testing.T) {
	b := newBed(t, stages.Bridge, "jedis-ms")
	s := b.sidecar("one", "")
	other := b.client(b.sidecar("two", ""))
	free := func(t *testing.T, key string) { // what was kept for a next attempt ends with its claim
		t.Helper()
		redistest.Await(t, "a free key", func() bool { return b.redis.Do("EXISTS", key, protocol.GuardKey(key)) == int64(0) })
	}
	raw := func(t *testing.T) (send func(want string, lines ...string)) {
		conn, err := net.Dial("tcp", s.Addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		in := bufio.NewReader(conn)
		return func(want string, lines ...string) {
			t.Helper()
			_, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n")
			require.NoError(t, err)
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			got := make([]byte, len(want))
			n, err := io.ReadFull(in, got)
			require.Equal(t, want, string(got[:n]), "%v %v", lines, err)
		}
	}
	text := ends(time.Minute)

	t.Run("inline", func(t *testing.T) {
		send := raw(t)
		send(":1\r\n:0\r\n+PONG\r\n:1\r\n", "SETNX lock:a "+text, `setnx "lock:\x61" 5`, "PING", "DEL 'lock:a'")
		free(t, "lock:a")
	})
	t.Run("MULTI", func(t *testing.T) {
		send := raw(t)
		send("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n",
			"MULTI", "SETNX lock:a "+text, "DEL lock:a", "EXEC")
		send("+OK\r\n+QUEUED\r\n+OK\r\n", "MULTI", "SETNX lock:a "+text, "DISCARD")
		free(t, "lock:a")
	})
	t.Run("WATCH", func(t *testing.T) {
		send := raw(t)
		send("+OK\r\n", "WATCH lock:w")
		says(t, other, "1", "SETNX", "lock:w", text)
		send("+OK\r\n+QUEUED\r\n*-1\r\n", "MULTI", "DEL lock:w", "EXEC")
		says(t, other, "1", "DEL", "lock:w")
	})
	t.Run("WATCH and SETNX in MULTI", func(t *testing.T) {
		// A key that is in demand: an attempt in a transaction is not held back. The sidecar would ask for the lock, and break the WATCH.
		for i := range 4 {
			key := fmt.Sprint("lock:x", i)
			says(t, other, "1", "SETNX", key, ends(400*time.Millisecond))
			waits := b.client(s)
			for range 2 {
				if got, err := redis.Int(waits.Do("SETNX", key, text)); err == nil && got == 1 { // a slow machine: the lease was over
					says(t, waits, "1", "DEL", key)
				}
			}
			free(t, key)
			send := raw(t)
			send("+OK\r\n+OK\r\n+QUEUED\r\n", "WATCH "+key, "MULTI", "SETNX "+key+" "+text)
			send("*1\r\n:1\r\n:1\r\n", "EXEC", "DEL "+key)
		}
	})
	t.Run("CLIENT REPLY", func(t *testing.T) {
		send := raw(t)
		send("+PONG\r\n", "CLIENT REPLY SKIP", "SETNX lock:a "+text, "PING")
		send("+OK\r\n+PONG\r\n", "CLIENT REPLY OFF", "DEL lock:a", "SETNX lock:a "+text, "DEL lock:a", "CLIENT REPLY ON", "PING")
		free(t, "lock:a")
	})
	t.Run("RESP3", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "HELLO 3\r\nGET lock:n\r\nSET lock:a "+text+" NX\r\nSET lock:a "+ends(time.Hour)+" NX\r\nGET lock:a\r\nDEL lock:a\r\nQUIT\r\n")
		require.NoError(t, err)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(got), "modules\r\n*0\r\n")
		assert.Equal(t, "_\r\n+OK\r\n_\r\n$13\r\n"+text+"\r\n:1\r\n+OK\r\n", after)
	})
	t.Run("SUBSCRIBE", func(t *testing.T) {
		send := raw(t)
		send("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n-ERR Can't execute '", "SUBSCRIBE c", "SETNX lock:a "+text)
		free(t, "lock:a")
	})
	t.Run("MONITOR", func(t *testing.T) {
		send := raw(t)
		send("+OK\r\n", "MONITOR")
		says(t, other, "1", "SETNX", "lock:a", text)
		says(t, other, "1", "DEL", "lock:a")
		free(t, "lock:a")
	})
	t.Run("half a command", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Addr)
		require.NoError(t, err)
		_, err = io.WriteString(conn, "*3\r\n$5\r\nSETNX\r\n$6\r\nlock:a\r\n$13\r\n"+text[:7])
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		_ = conn.Close()
		time.Sleep(50 * time.Millisecond)
		free(t, "lock:a")
		says(t, other, "1", "SETNX", "lock:a", text)
		says(t, other, "1", "DEL", "lock:a")
	})
}

// The server ends in the middle of a reply: the client sees what came, and the end.
func TestHalfAReply(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	s := b.sidecar("one", "")
	conn, err := net.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer conn.Close()
	b.redis.Do("SET", "long", strings.Repeat("x", 32<<20))
	says(t, b.client(s), "1", "SETNX", "lock:a", ends(time.Minute))
	_, err = io.WriteString(conn, "GET long\r\n")
	require.NoError(t, err)
	head := make([]byte, 1<<20)
	_, err = io.ReadFull(conn, head)
	require.NoError(t, err)
	b.redis.Kill()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := io.Copy(io.Discard, conn)
	assert.Less(t, n, int64(31<<20))
	if err != nil {
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	}
	b.redis.Start()
	redistest.Await(t, "a new connection", func() bool {
		conn, err := redis.Dial("tcp", s.Addr)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = conn.Do("PING")
		return err == nil
	})
}

// A text may hold what a record is made of.
func TestNoWordsComeIn(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-uuid")
	c := b.client(b.sidecar("one", ""))
	says(t, c, "1", "SETNX", "lock:a", "x")
	says(t, c, "x", "GETSET", "lock:a", "x 99999999999999 y:1")
	says(t, c, "x 99999999999999 y:1", "GET", "lock:a")
	says(t, c, "1", "SETNX", "lock:b \n", "a\r\nb \x00 c")
	says(t, c, "a\r\nb \x00 c", "GET", "lock:b \n")
	says(t, c, "1", "DEL", "lock:b \n")
}

// A time beyond a century stands for no end: the lock is renewed, and no key keeps a TTL of centuries.
func TestBeyondACentury(t *testing.T) {
	b := newBed(t, stages.Modern, "jedis-ms")
	c := b.client(b.sidecar("one", ""))
	for _, text := range []string{"7000000000000", "9999999999999", "9223372036854775807"} {
		key := "lock:" + text
		says(t, c, "1", "SETNX", key, text)
		says(t, c, text, "GET", key)
		for _, name := range []string{key, protocol.SidecarKey(key)} {
			ttl, _ := redis.Int64(b.redis.Do("PTTL", name), nil)
			assert.True(t, 0 < ttl && ttl < 60_000, "%s: %d ms", name, ttl)
		}
		says(t, c, "1", "DEL", key)
	}
}

// A script whose number of keys the server does not take does not run, though nobody can tell which of its words are keys.
func TestWrongNumbersOfKeys(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Bridge, stages.Modern} {
		b := newBed(t, stage, "jedis-ms")
		c := b.client(b.sidecar("one", ""))
		for number, want := range map[string]string{
			"x": "ERR value is not an integer or out of range", "": "ERR value is not an integer or out of range", "1.0": "ERR value is not an integer or out of range",
			"01": "ERR value is not an integer or out of range", "-1": "ERR Number of keys can't be negative", "3": "ERR Number of keys can't be greater than number of args",
		} {
			says(t, c, want, "EVAL", "return redis.call('SET', 'other', 'x')", number, "lock:a", "x")
		}
		assert.EqualValues(t, 0, b.redis.Do("EXISTS", "other"))
	}
}

// TestAnotherDialectThanTheService: a sidecar of the wrong dialect gives a lock no lease, so it says so once, with the dialect that fits,
// and counts each attempt. What has no time by intent, or is of the dialect, is neither.
func TestAnotherDialectThanTheService(t *testing.T) {
	for _, stage := range []stages.Stage{stages.Legacy, stages.Bridge, stages.Modern} {
		b := newBed(t, stage, "jedis-ms")
		log := &written{}
		s := b.sidecar("billing", "", func(o *sidecar.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
		c := b.client(s)
		unread := func() int64 { return s.counted("unread") }
		says(t, c, "1", "SETNX", "lock:1", ends(time.Minute))
		assert.NotContains(t, log.String(), "no time of the dialect", stage)
		for i, text := range []string{"1795397743.123457", "1795397743.987", "held"} {
			says(t, c, "1", "SETNX", fmt.Sprint("lock:", i+2), text)
		}
		assert.EqualValues(t, 3, unread(), stage)
		assert.Equal(t, 1, strings.Count(log.String(), "no time of the dialect"), stage)
		assert.Contains(t, log.String(), "text=1795397743.123457 dialect=jedis-ms fits=redispy-float,", stage)

		none := b.sidecar("nightly", sidecar.DialectNone)
		says(t, b.client(none), "1", "SETNX", "lock:9", "held")
		float := b.sidecar("python", "redispy-float")
		says(t, b.client(float), "1", "SETNX", "lock:10", fmt.Sprintf("%.6f", float64(time.Now().Add(time.Minute).UnixMicro())/1e6))
		for _, other := range []*started{none, float} {
			assert.Zero(t, other.counted("unread"), stage)
		}
	}
}
