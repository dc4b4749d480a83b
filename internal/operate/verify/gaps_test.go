package verify_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

// TestHolesAreInconclusive breaks the evidence, and wants the obligation that it leaves open.
func TestHolesAreInconclusive(t *testing.T) {
	s := redistest.Real(t)
	lock := verify.Options{Match: []string{"lock:*"}, Census: true}

	c := during(t, s, lock, func() { s.Do("CONFIG", "RESETSTAT") })
	assert.Equal(t, []string{"counters"}, open(c))
	assert.Contains(t, c.Why, "reset")

	c = during(t, s, lock, func() { s.Kill(); s.Start() })
	assert.Equal(t, verify.Inconclusive, c.Verdict)
	assert.Contains(t, open(c), "counters")

	other := redistest.Real(t) // a failover there and back within one look: clients lock on the other server
	c = during(t, s, lock, func() {
		host, port, _ := strings.Cut(other.Addr, ":")
		s.Do("REPLICAOF", host, port)
		redistest.Await(t, "a replica that follows", 10*time.Second, func() bool {
			info, _ := redis.String(s.Do("INFO", "replication"), nil)
			return strings.Contains(info, "master_link_status:up")
		})
		s.Do("REPLICAOF", "NO", "ONE")
	})
	assert.Equal(t, []string{"counters"}, open(c), c.Why)

	o := lock
	o.Longest = time.Hour
	c = during(t, s, o, func() {})
	assert.Equal(t, []string{"window"}, open(c))

	s.Do("SET", "lock:held", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
	o = lock
	var mu sync.Mutex
	var warnings []string
	o.Warn = func(text string) { mu.Lock(); defer mu.Unlock(); warnings = append(warnings, text) }
	c = during(t, s, o, func() {})
	assert.Equal(t, []string{"values"}, open(c), "a live legacy value that does not change")
	assert.Contains(t, c.Why, "lock:held")
	assert.Len(t, warnings, 1, "it is said at the start")

	c = during(t, s, lock, func() { s.Do("DEL", "lock:held") })
	assert.Equal(t, verify.Seen, c.Verdict, "a live value that is deleted")

	s.Do("SETNX", "lock:flag", "1")
	c = during(t, s, lock, func() {})
	assert.Equal(t, []string{"values"}, open(c), "a value without TTL, which no modern client writes")
	s.Do("DEL", "lock:flag")

	c = during(t, s, lock, func() { s.Do("SET", "lock:odd", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()), "NX") })
	assert.Equal(t, verify.Seen, c.Verdict, "a legacy value set by SET NX shows in the census")
	s.Do("DEL", "lock:odd")

	s.Do("SET", "lock:over", fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli()))
	c = during(t, s, lock, func() {})
	assert.Equal(t, verify.NoneSeen, c.Verdict, "%s: a value that was over before", c.Why)

	ctx, cancel := context.WithCancel(context.Background())
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	c, err = verify.Run(ctx, end, verify.Options{Window: time.Hour})
	require.NoError(t, err)
	assert.Less(t, time.Since(began), time.Second)
	assert.Equal(t, verify.Inconclusive, c.Verdict)
	assert.Contains(t, c.Why, "interrupted")
}

// TestHeldBack has old clients whose commands wait at the server at the end of the window, and a pause within it.
func TestHeldBack(t *testing.T) {
	t.Run("redis-server", func(t *testing.T) { heldBack(t, redistest.Real(t)) })
	if redistest.Wanted(redistest.Servers) {
		for _, name := range []string{"redis-8.10.2", "valkey-9.0.0"} {
			t.Run(name, func(t *testing.T) { heldBack(t, redistest.Of(t, name)) })
		}
	}
}

func heldBack(t *testing.T, s *redistest.Server) {
	lock := verify.Options{Match: []string{"lock:*"}, Census: true, Whole: true}
	c := during(t, s, lock, func() { s.Do("CLIENT", "PAUSE", 1, "WRITE") })
	assert.Equal(t, []string{"counters"}, open(c))
	assert.Contains(t, c.Why, "CLIENT PAUSE ran")

	live(s)
	old := s.Conn()
	for what, words := range map[string][]any{
		"SETNX": {"SETNX", "lock:a", "1"}, "EVAL": {"EVAL", "return redis.call('SETNX', KEYS[1], '1')", 1, "lock:a"}, "BRPOPLPUSH": {"BRPOPLPUSH", "queue", "lock:a", 20},
	} {
		end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
		require.NoError(t, err)
		if what != "BRPOPLPUSH" { // it waits by itself
			s.Do("CLIENT", "PAUSE", 20_000, "WRITE")
		}
		o := lock
		o.Window, o.Longest = 500*time.Millisecond, 500*time.Millisecond
		once := sync.Once{}
		o.Progress = func(left time.Duration, _ int) {
			if left > 0 {
				once.Do(func() {
					require.NoError(t, old.Send(words[0].(string), words[1:]...))
					require.NoError(t, old.Flush())
					redistest.Await(t, "a client that waits", 10*time.Second, func() bool {
						list, _ := redis.String(s.Do("CLIENT", "LIST"), nil)
						return strings.Contains(list, "flags=b")
					})
				})
			}
		}
		c, err := verify.Run(t.Context(), end, o)
		require.NoError(t, err)
		assert.Equal(t, verify.Inconclusive, c.Verdict)
		if what == "BRPOPLPUSH" {
			assert.Contains(t, open(c), "commands", c.Why)
		} else {
			assert.Equal(t, []string{"counters"}, open(c), c.Why)
			assert.Contains(t, c.Why, "such as "+what+" of ")
		}
		s.Do("CLIENT", "UNPAUSE")
		s.Do("LPUSH", "queue", "x")
		_, err = old.Receive()
		require.NoError(t, err)
		s.Do("DEL", "lock:a", "queue")
	}
}

// TestPromotedByHand makes a replica a master within the window: old clients may lock there from then on.
func TestPromotedByHand(t *testing.T) {
	r := redistest.NewReplicated(t)
	r.AwaitInStep(t)
	lock := verify.Options{Match: []string{"lock:*"}, Census: true}
	c := during(t, r.Master, lock, func() {})
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
	c = during(t, r.Master, lock, func() {
		r.Promote()
		redistest.Await(t, "a master without a replica", 10*time.Second, func() bool {
			info, _ := redis.String(r.Master.Do("INFO", "replication"), nil)
			return strings.Contains(info, "connected_slaves:0")
		})
	})
	assert.Equal(t, []string{"counters"}, open(c))
	assert.Contains(t, c.Why, "lost a replica")
}

// TestAPatternThatMatchesNothing has a pattern with a mistake beside one that a key, or a command, matches.
func TestAPatternThatMatchesNothing(t *testing.T) {
	s := redistest.Real(t)
	o := verify.Options{Match: []string{"lock:*", "lokc:*"}, Census: true, Whole: true}
	c := during(t, s, o, func() { s.Do("SETNX", "lock:a", "1"); s.Do("DEL", "lock:a") })
	assert.Equal(t, []string{"keys", "commands"}, open(c))
	assert.Contains(t, fmt.Sprint(c.Obligations), `"lokc:*" matched neither a key nor a command`)
	c = during(t, s, o, func() { s.Do("SET", "lokc:a", "token", "NX", "PX", 1) })
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
}

// TestGapsOfMonitor has commands run before MONITOR breaks, and while a broken MONITOR comes back.
func TestGapsOfMonitor(t *testing.T) {
	s := redistest.Real(t)
	other := func() { s.Do("SETNX", "cache:a", "1") }
	lock := verify.Options{Match: []string{"lock:*"}, Window: 1600 * time.Millisecond, Look: 50 * time.Millisecond}

	o := lock
	o.Whole = true
	step := 0
	o.Progress = func(time.Duration, int) {
		switch step++; step {
		case 1: // before a look that MONITOR shows
			other()
		case 2:
			s.Do("CLIENT", "KILL", "TYPE", "normal")
			other()
		}
	}
	o.Longest = o.Window
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	c, err := verify.Run(context.Background(), end, o)
	require.NoError(t, err)
	if assert.Contains(t, open(c), "commands", "the second one ran while MONITOR was broken") {
		assert.Contains(t, c.Why, "1 of 2 SETNX ran while MONITOR was off")
	}
	c = during(t, s, o, func() { s.Do("CLIENT", "KILL", "TYPE", "normal") })
	assert.NotContains(t, open(c), "commands", "nothing ran while MONITOR was broken")
	assert.NotContains(t, open(c), "counters", "a broken connection is no hole in the counters")

}

// TestLongLines has values that are too long to be read: on other keys they do not matter, on lock keys the form of
// the command is not known.
func TestLongLines(t *testing.T) {
	s := redistest.Real(t)
	long := strings.Repeat("x", 100_000)
	o := verify.Options{Match: []string{"lock:*"}, Whole: true}
	c := during(t, s, o, func() { s.Do("SET", "cache:a", long, "NX"); s.Do("SETNX", "cache:b", long) })
	assert.NotContains(t, open(c), "commands", c.Why)
	c = during(t, s, o, func() { s.Do("SET", "lock:a", long, "NX"); s.Do("DEL", "lock:a") })
	assert.Contains(t, open(c), "commands", c.Why)
	c = during(t, s, o, func() { s.Do("SETNX", "lock:a", long); s.Do("DEL", "lock:a") })
	assert.Equal(t, verify.Seen, c.Verdict, c.Why)
}
