package verify_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// sends lets something happen on a server, as testdata writes it: commands, each behind a semicolon; - for nothing. What has a name in braces is put in its place.
func sends(t *testing.T, s *redistest.Server, cell string) {
	fill := strings.NewReplacer("{live}", fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()), "{over}", fmt.Sprint(time.Now().Add(-time.Minute).UnixMilli()), "{long}", strings.Repeat("x", 100_000))
	for line := range strings.SplitSeq(fill.Replace(cell), " ; ") {
		switch words := strings.Fields(line); words[0] {
		case "-":
		case "restart":
			s.Kill()
			s.Start()
		case "times": // a command
			n, err := strconv.Atoi(words[1])
			require.NoError(t, err)
			for range n {
				s.Do(words[2], redis.Args{}.AddFlat(words[3:])...)
			}
		case "as": // a user, who may be denied the command
			_, _ = s.ConnAs(words[1]).Do(words[2], redis.Args{}.AddFlat(words[3:])...)
		default:
			s.Do(words[0], redis.Args{}.AddFlat(words[1:])...)
		}
	}
}

// TestWindows has what stands on the keys before a window, what happens within it, and what that leaves open or comes to.
func TestWindows(t *testing.T) {
	s := redistest.Real(t)
	for _, row := range redistest.Rows(t, "testdata/windows.txt") {
		cells := strings.Split(strings.Join(row, " "), " | ")
		require.Len(t, cells, 5, row)
		s.Do("FLUSHALL")
		sends(t, s, cells[3])
		o := verify.Options{Match: []string{"lock:*"}, Whole: cells[2] == "monitor"}
		warned := 0
		o.Warn = func(string) { warned++ }
		c := during(t, s, o, func() { sends(t, s, cells[4]) })
		if string(c.Verdict) != cells[0] {
			assert.Equal(t, verify.Inconclusive, c.Verdict, row)
			assert.Equal(t, cells[0], open(c)[0], "%v: %s", row, c.Why)
		}
		assert.Contains(t, c.Why, cells[1], row)
		if cells[0] == "values" {
			assert.Equal(t, 1, warned, "it is said at the start")
		}
	}
}

// TestOneNodeOfACluster: the other nodes have the other keys.
func TestOneNodeOfACluster(t *testing.T) {
	s := redistest.Real(t, "--cluster-enabled", "yes")
	end := at(t, s.URL())
	assert.Equal(t, []string{"keys", "masters"}, open(within(t, end, verify.Options{Match: []string{"lock.*"}}, func() {})))
}

// TestHeldBack has old clients whose commands wait at the server at the end of the window, and a pause within it.
func TestHeldBack(t *testing.T) {
	redistest.EachVersion(t, []string{"redis-8.10.2", "valkey-9.0.0"}, heldBack)
}

func heldBack(t *testing.T, s *redistest.Server) {
	lock := verify.Options{Match: []string{"lock:*"}, Whole: true}
	c := during(t, s, lock, func() { s.Do("CLIENT", "PAUSE", 1, "WRITE") })
	assert.Equal(t, []string{"counters"}, open(c))
	assert.Contains(t, c.Why, "CLIENT PAUSE ran")

	old, end := s.Conn(), at(t, s.URL())
	for what, words := range map[string][]any{
		"SETNX": {"SETNX", "lock:a", "1"}, "EVAL": {"EVAL", "return redis.call('SETNX', KEYS[1], '1')", 1, "lock:a"}, "BRPOPLPUSH": {"BRPOPLPUSH", "queue", "lock:a", 20},
	} {
		if what != "BRPOPLPUSH" { // it waits by itself
			s.Do("CLIENT", "PAUSE", 20_000, "WRITE")
		}
		c := within(t, end, lock, func() {
			require.NoError(t, old.Send(words[0].(string), words[1:]...))
			require.NoError(t, old.Flush())
			redistest.Await(t, "a client that waits", func() bool {
				list, _ := redis.String(s.Do("CLIENT", "LIST"), nil)
				return strings.Contains(list, "flags=b")
			})
		})
		assert.Equal(t, verify.Inconclusive, c.Verdict)
		if what == "BRPOPLPUSH" {
			assert.Contains(t, open(c), "commands", c.Why)
		} else {
			assert.Equal(t, []string{"counters"}, open(c), c.Why)
			assert.Contains(t, c.Why, "such as "+what+" of ")
		}
		s.Do("CLIENT", "UNPAUSE")
		s.Do("LPUSH", "queue", "x")
		_, err := old.Receive()
		require.NoError(t, err)
		s.Do("DEL", "lock:a", "queue")
	}
}

// TestPromotedByHand makes a replica a master within the window: old clients may lock there from then on.
func TestPromotedByHand(t *testing.T) {
	r := redistest.NewReplicated(t)
	r.AwaitInStep(t)
	lock := verify.Options{Match: []string{"lock:*"}}
	c := during(t, r.Master, lock, func() {})
	assert.Equal(t, verify.NoneSeen, c.Verdict, c.Why)
	c = during(t, r.Master, lock, func() {
		r.Promote()
		redistest.Await(t, "a master without a replica", func() bool {
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
	o := verify.Options{Match: []string{"lock:*", "lokc:*"}, Whole: true}
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
	end := at(t, s.URL())
	c, err := verify.Run(context.Background(), end, o)
	require.NoError(t, err)
	if assert.Contains(t, open(c), "commands", "the second one ran while MONITOR was broken") {
		assert.Contains(t, c.Why, "1 of 2 SETNX ran while MONITOR was off")
	}
	c = during(t, s, o, func() { s.Do("CLIENT", "KILL", "TYPE", "normal") })
	assert.NotContains(t, open(c), "commands", "nothing ran while MONITOR was broken")
	assert.NotContains(t, open(c), "counters", "a broken connection is no hole in the counters")

}

// A node may join a cluster, serve an old client and leave, while both lists of the masters are the same.
func TestANodeThatComesAndGoes(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, 3, 0, "--cluster-allow-replica-migration", "no")
	guest := c.Masters[2] // it has no slots
	for _, s := range c.Masters {
		s.Do("CLUSTER", "DELSLOTSRANGE", 2*redistest.Slots/3, redistest.Slots-1)
	}
	c.Masters[1].Do("CLUSTER", "ADDSLOTSRANGE", 2*redistest.Slots/3, redistest.Slots-1)
	end := at(t, c.URL())
	redistest.Await(t, "two masters", func() bool {
		masters, err := end.Masters(t.Context())
		return err == nil && len(masters) == 2
	})
	c.AwaitOK()
	slot := protocol.Slot("lock:a")
	owner := c.Owner(slot)
	takes := func(before func(redis.Conn)) {
		conn := guest.Conn()
		before(conn)
		taken, err := conn.Do("SETNX", "lock:a", time.Now().Add(time.Minute).UnixMilli())
		require.NoError(t, err)
		assert.EqualValues(t, 1, taken)
		before(conn)
		_, err = conn.Do("DEL", "lock:a")
		require.NoError(t, err)
	}
	run := func(act func()) verify.Certificate {
		return within(t, end, verify.Options{Window: time.Second, Match: []string{"lock:*"}}, act)
	}
	live(c.Owner(protocol.Slot("lock:live")))
	cert := run(func() {})
	require.Equal(t, verify.NoneSeen, cert.Verdict, cert.Why)

	cert = run(func() {
		m := c.Migrate(slot, guest)
		takes(func(conn redis.Conn) { _, _ = conn.Do("ASKING") })
		for _, s := range []*redistest.Server{m.From, guest} {
			s.Do("CLUSTER", "SETSLOT", slot, "STABLE")
		}
	})
	assert.Equal(t, []string{"counters"}, open(cert), "a slot that has no new owner in the end: %s", cert.Why)

	cert = run(func() {
		c.Migrate(slot, guest).Finish()
		takes(func(redis.Conn) {})
		c.Migrate(slot, owner).Finish()
	})
	assert.Equal(t, verify.Inconclusive, cert.Verdict, cert.Why)
	assert.Contains(t, open(cert), "counters")

	saved := cut(t, end, verify.Options{Window: time.Second, Longest: time.Second, Match: []string{"lock:*"}, Look: 50 * time.Millisecond}, func() {})
	c.Migrate(slot, guest).Finish()
	takes(func(redis.Conn) {})
	c.Migrate(slot, owner).Finish()
	again, said := saved.Options, ""
	again.Resume, again.Warn = &saved, func(text string) { said += text }
	cert, err := verify.Run(t.Context(), end, again)
	require.NoError(t, err)
	assert.Contains(t, said, "the window begins again: ")
	assert.Contains(t, said, "slots may have moved")
	assert.Empty(t, cert.Evidence.Gaps)
	assert.Equal(t, verify.NoneSeen, cert.Verdict, cert.Why)

	gives := func(to *redistest.Server) {
		says := func(s *redistest.Server, word string) error {
			conn := s.Pool().Get()
			defer conn.Close()
			_, err := conn.Do("CLUSTER", word, slot)
			return err
		}
		redistest.Await(t, "the slot's new owner", func() bool {
			for _, s := range c.Masters {
				_ = says(s, "DELSLOTS") // what the owner has told of meanwhile is unlearned once more
			}
			return says(to, "ADDSLOTS") == nil
		})
		c.AwaitOwner(slot, to)
		c.AwaitOK()
	}
	cert = run(func() {
		gives(guest)
		takes(func(redis.Conn) {})
		gives(owner)
	})
	assert.Equal(t, []string{"counters"}, open(cert), "no owner takes a new epoch: %s", cert.Why)

	for _, s := range c.Masters {
		s.Do("ACL", "SETUSER", "default", "-cluster|info")
	}
	cert = run(func() {})
	assert.Equal(t, []string{"counters"}, open(cert), cert.Why)
	assert.Contains(t, cert.Why, "grant +cluster|info")
}
