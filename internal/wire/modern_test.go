package wire

import (
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
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
	queue("e")
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
