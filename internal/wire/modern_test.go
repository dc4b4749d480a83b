package wire

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func dialMini(t *testing.T) redis.Conn {
	t.Helper()
	addr := os.Getenv("LOCKMIGRATE_TEST_ADDR")
	if addr == "" {
		addr = miniredis.RunT(t).Addr()
	}
	conn, err := redis.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func ask(t *testing.T, conn redis.Conn, c protocol.Command) protocol.Reply {
	t.Helper()
	reply, err := Do(conn, time.Second, c)
	if err != nil {
		t.Fatalf("op %d: %v", c.Op, err)
	}
	return reply
}

// The queue's life on one key: take, wait behind, be passed over when nobody listens, be granted.
func TestQueueScripts(t *testing.T) {
	conn := dialMini(t)
	queue := func(token string) protocol.Reply {
		return ask(t, conn, protocol.Command{Op: protocol.Queue, Key: "k", Value: token, TTL: time.Minute,
			Queue: "{k}:q", Channel: "c-" + token, Claim: time.Second, QueueTTL: time.Minute,
			Fence: "{k}:f", FenceTTL: time.Hour})
	}
	release := func(token string, leave bool) protocol.Reply {
		c := protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: token, Queue: "{k}:q",
			Fence: "{k}:f", FenceTTL: time.Hour}
		if leave {
			c.Channel, c.Claim = "c-"+token, time.Second
		}
		return ask(t, conn, c)
	}
	first := queue("a")
	if first.Int != 1 || first.Int2 == 0 {
		t.Fatalf("the free key was not taken: %+v", first)
	}
	b, c := queue("b"), queue("c")
	if b.Int != 0 || c.Int != -1 || c.Int3 <= b.Int3 || b.Int2 <= 0 {
		t.Fatalf("queued as %+v and %+v", b, c)
	}
	if again := queue("b"); again.Int3 != b.Int3 {
		t.Fatalf("asking again moved the waiter: %+v then %+v", b, again)
	}
	if got := release("b", false); got.Int != 0 {
		t.Fatalf("a waiter released the holder's key: %+v", got)
	}
	if got := release("a", false); got.Int != 1 {
		t.Fatalf("with nobody listening the key must be deleted: %+v", got)
	}
	if got := queue("d"); got.Int != 1 || got.Int2 <= first.Int2 {
		t.Fatalf("the free key was not taken with a higher fence: %+v", got)
	}
	entry := protocol.Command{Op: protocol.Unqueue, Key: "k", Value: "f", Queue: "{k}:q", Channel: "c-f", Claim: time.Second}
	queue("e")
	queue("f")
	if first, again := ask(t, conn, entry), ask(t, conn, entry); first.Int != 1 || again.Int != 0 {
		t.Fatalf("an entry was removed %d and then %d times", first.Int, again.Int)
	}
	if got := release("e", true); got.Int != 0 {
		t.Fatalf("leaving: %+v", got)
	}
	if n, _ := redis.Int(conn.Do("EXISTS", "{k}:q")); n != 0 {
		t.Fatal("the queue outlives its last waiter")
	}
}

// The key is free, those in line before us do not listen any more, and we do not listen yet: whoever
// asks gets it, instead of an error.
func TestQueueScriptWithNobodyListening(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		conn := s.Conn()
		queue := func(token string) protocol.Reply {
			return ask(t, conn, protocol.Command{Op: protocol.Queue, Key: "k", Value: token, TTL: time.Minute,
				Queue: "{k}:q", Channel: "c-" + token, Claim: time.Second, QueueTTL: time.Minute})
		}
		queue("holder")
		queue("dead")
		s.Do("DEL", "k") // by somebody who knows of no queue
		if got := queue("late"); got.Int != 1 {
			t.Fatalf("the free key was not taken: %+v", got)
		}
		if got := s.Value("k"); got != "late" {
			t.Fatalf("the key holds %q", got)
		}
	})
}

// A queue without a fencing counter is asked with fewer arguments, and answered by the part of the
// scripts that comes before all else: it does the same.
func TestQueueScriptsInBrief(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		full, brief := passAround(t, s, "full", "{full}:fence"), passAround(t, s, "brief", "")
		if !slices.Equal(full, brief) {
			t.Errorf("with a counter:\n%s\nwithout:\n%s", strings.Join(full, "\n"), strings.Join(brief, "\n"))
		}
	})
}

// passAround tells what becomes of a key that is passed among waiters who listen and others who do not.
func passAround(t *testing.T, s *redistest.Server, key, fence string) (told []string) {
	conn := s.Conn()
	listener := redis.PubSubConn{Conn: s.Conn()}
	if err := listener.Subscribe("hears"); err != nil {
		t.Fatal(err)
	}
	listener.ReceiveWithTimeout(time.Minute)
	command := func(op protocol.Op, token, channel string) protocol.Command {
		c := protocol.Command{Op: op, Key: key, Value: token, Queue: "{" + key + "}:queue", Channel: channel, Fence: fence,
			TTL: time.Minute, Claim: 20 * time.Second, QueueTTL: time.Hour}
		if fence != "" {
			c.FenceTTL = time.Hour
		}
		return c
	}
	look := func(what string, reply protocol.Reply) {
		left := "no TTL"
		if ms, _ := redis.Int64(conn.Do("PTTL", key)); ms > 0 {
			left = time.Duration(ms * 1e6).Round(10 * time.Second).String()
		}
		waiting, err := redis.Int(conn.Do("ZCARD", "{"+key+"}:queue"))
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, fmt.Sprintf("%s: %d, the key holds %q for %s, %d wait", what, reply.Int, s.Value(key), left, waiting))
	}
	queue := func(token, channel string) (ticket int64) {
		reply := ask(t, conn, command(protocol.Queue, token, channel))
		look(token+" asks", reply)
		return reply.Int3
	}
	release := func(token string) { look(token+" releases", ask(t, conn, command(protocol.QueueRelease, token, ""))) }
	granted := func(token string, ticket int64) {
		m, ok := listener.ReceiveWithTimeout(time.Minute).(redis.Message)
		if want := fmt.Sprintf("%d ", ticket); !ok || !strings.HasPrefix(string(m.Data), want) || !strings.HasSuffix(string(m.Data), " "+token) {
			t.Errorf("%s: told %q, want %q for %s", key, m.Data, want, token)
		}
	}
	queue("a", "hears")
	queue("b", "deaf")
	ticket := queue("c", "hears")
	queue("d", "deaf")
	release("b") // which it does not hold
	release("a") // b is gone: c has it
	granted("c", ticket)
	release("c") // nobody is left
	queue("e", "hears")
	ticket = queue("f", "hears")
	queue("g", "hears")
	s.Do("DEL", key) // by somebody who knows of no queue
	queue("g", "hears")
	granted("f", ticket) // the first in line has it, whoever asks
	s.Do("DEL", key)
	queue("g", "hears") // now it is the first itself
	queue("h", "hears")
	s.Do("SET", key, "a stranger's")
	release("g")
	s.Do("DEL", key)
	s.Do("RPUSH", key, "another type")
	if reply := ask(t, conn, command(protocol.QueueRelease, "g", "")); reply.Kind != protocol.Integer || reply.Int != 0 {
		t.Errorf("a list was released: %+v", reply)
	}
	return told
}

// What a waiter is to hear of goes to the server behind a command that has an answer at once.
func TestWantedReleaseIsAnsweredLast(t *testing.T) {
	r, err := RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q", Wanted: true})
	if err != nil || !r.AnswerLast {
		t.Errorf("%+v, %v", r, err)
	}
	if r, _ = RequestOf(protocol.Command{Op: protocol.QueueRelease, Key: "k", Value: "a", Queue: "{k}:q"}); r.AnswerLast {
		t.Error("though nobody waits")
	}
}
