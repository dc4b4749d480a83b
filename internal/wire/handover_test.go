package wire_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// waits makes a command that of a client that knows the queue, and stands in it where it has a channel.
func waits(channel, value string, change ...func(*protocol.Command)) func(*protocol.Command) {
	return func(c *protocol.Command) {
		c.Value, c.Queue, c.Guard, c.QueueTTL, c.Hand = value, protocol.QueueKey(c.Key), protocol.GuardKey(c.Key), time.Minute, true
		c.Channel, c.Claim = channel, time.Second
		if channel != "" && c.Op == protocol.BridgeTake {
			c.Entry = protocol.Entry{Claim: c.Claim, Guarded: true, Channel: channel, Token: value}.String()
		}
		for _, f := range change {
			f(c)
		}
	}
}

const third = "7123456789012345678"

// TestBridgeHandsOver: a release gives the lock to the first in the queue, key and guard at once, for its claim; a token
// client gets the key alone. Neither a newcomer nor the second gets it, and who has it makes a full lease of it by asking.
func TestBridgeHandsOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		take := func(channel, value string) protocol.Reply {
			return b.send(b.command(protocol.BridgeTake, waits(channel, value)))
		}
		drop := func(value string) protocol.Reply { return b.send(b.command(protocol.BridgeDrop, waits("", value))) }
		b.want(take("", mine), protocol.TakeFree, mine, mine)
		a := take(protocol.Polls, theirs)
		b.want(a, protocol.TakeHeld, mine, mine)
		token := b.send(b.command(protocol.Queue, waits(protocol.Polls, third)))
		if a.Int2 != 0 || token.Int != -1 || a.Int4 == 0 || a.Int4 >= token.Int3 {
			t.Errorf("the first is told %+v, the second %+v", a, token)
		}
		if again := take(protocol.Polls, theirs); again.Int4 != a.Int4 {
			t.Errorf("ticket %d, and asked again %d", a.Int4, again.Int4)
		}

		if handed := drop(mine); handed.Int != protocol.DropHanded {
			t.Errorf("handed over: %+v", handed)
		}
		b.want(take("", mine), protocol.TakeHeld, theirs, theirs)
		for _, key := range []string{b.key, b.guard()} {
			if left, err := redis.Int64(b.do("PTTL", key), nil); err != nil || left > 1000 {
				t.Errorf("%s is claimed for %d ms (%v)", key, left, err)
			}
		}
		b.want(take(protocol.Polls, theirs), protocol.TakeMine, theirs, theirs)
		if left, _ := redis.Int64(b.do("PTTL", b.key), nil); left <= 1000 {
			t.Errorf("asked, and %d ms are left", left)
		}

		b.want(drop(theirs), protocol.DropHanded, third, "-")
		b.want(take(protocol.Polls, mine), protocol.TakeHeld, third, "-")
		if handed := b.send(b.command(protocol.QueueRelease, waits("", third))); handed.Int != 2 {
			t.Errorf("a token client's release: %+v", handed)
		}
		b.want(take("", theirs), protocol.TakeHeld, mine, mine)
		if left := b.do("EXISTS", protocol.QueueKey(b.key)); left != int64(0) {
			t.Error("the queue outlived those who stood in it")
		}
	})
}

// TestBridgeHandsNothingOver that is not its own on both keys, nor what may not have settled; and to nobody whose lease in
// the namespace is over, who does not listen, or whose guard another holder has.
func TestBridgeHandsNothingOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		entry := func(c *protocol.Command, change func(*protocol.Entry)) {
			e := protocol.Entry{Claim: time.Second, Guarded: true, Channel: protocol.Polls, Token: theirs}
			change(&e)
			c.Entry = e.String()
		}
		for name, c := range map[string]struct {
			entry func(*protocol.Entry)
			drop  func(*protocol.Command)
			spoil func()
			code  int64
			key   string
		}{
			"stale DEL": {spoil: func() { b.do("DEL", b.key) }, code: protocol.DropRepaired, key: "-"},
			"displaced": {spoil: func() { b.do("SET", b.key, "x") }, code: protocol.DropTheirs, key: "x"},
			"unsettled": {drop: func(c *protocol.Command) { c.Hand = false }, code: protocol.DropDone, key: "-"},
			"late":      {entry: func(e *protocol.Entry) { e.Until = 1e15 }, code: protocol.DropDone, key: "-"},
			"unheard":   {entry: func(e *protocol.Entry) { e.Channel = "nobody" }, code: protocol.DropDone, key: "-"},
		} {
			b.do("DEL", b.key, b.guard(), protocol.QueueKey(b.key))
			b.want(b.send(b.command(protocol.BridgeTake, waits("", mine))), protocol.TakeFree, mine, mine)
			b.want(b.send(b.command(protocol.BridgeTake, waits(protocol.Polls, theirs, func(cmd *protocol.Command) {
				if c.entry != nil {
					entry(cmd, c.entry)
				}
			}))), protocol.TakeHeld, mine, mine)
			if c.spoil != nil {
				c.spoil()
			}
			reply := b.send(b.command(protocol.BridgeDrop, waits("", mine, func(cmd *protocol.Command) {
				if c.drop != nil {
					c.drop(cmd)
				}
			})))
			t.Log(name)
			if c.code == protocol.DropTheirs { // told, and told again; what comes after that deletes the guard
				b.want(reply, c.code, c.key, mine)
				b.want(b.send(b.command(protocol.BridgeDrop, waits("", mine))), c.code, c.key, mine)
				reply = b.send(b.command(protocol.BridgeDrop))
			}
			b.want(reply, c.code, c.key, "-")
		}

		// A token client beside a bridge holder that has lost its key gives it back, and leaves the bridge client its place.
		b.do("DEL", b.key, b.guard(), protocol.QueueKey(b.key))
		b.do("SET", b.guard(), third)
		b.do("SET", b.key, mine)
		b.send(b.command(protocol.BridgeTake, waits(protocol.Polls, theirs)))
		if reply := b.send(b.command(protocol.QueueRelease, waits("", mine))); reply.Int != 1 {
			t.Errorf("a token client's release beside another's guard: %+v", reply)
		}
		if left := b.do("ZCARD", protocol.QueueKey(b.key)); left != int64(1) || s.Value(b.guard()) != third {
			t.Errorf("%v wait, the guard is %s", left, s.Value(b.guard()))
		}
	})
}

// TestBridgeGivesAFreeKeyToTheFirst: a client that finds the key free gives it to the first who still listens, and takes it when
// there is none. An entry with another bound takes the place of the one before.
func TestBridgeGivesAFreeKeyToTheFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		take := func(channel, value string, change ...func(*protocol.Command)) protocol.Reply {
			return b.send(b.command(protocol.BridgeTake, waits(channel, value, change...)))
		}
		b.do("SET", b.guard(), third, "PX", 60000)
		take("nobody", mine)
		first := take(protocol.Polls, theirs)
		later := func(c *protocol.Command) {
			c.Stood = c.Entry
			c.Entry = protocol.Entry{Claim: time.Second, Until: 9e18, Guarded: true, Channel: protocol.Polls, Token: theirs}.String()
		}
		if moved := take(protocol.Polls, theirs, later); moved.Int4 != first.Int4 || b.do("ZCARD", protocol.QueueKey(b.key)) != int64(2) {
			t.Errorf("ticket %d, with another bound %d, %v wait", first.Int4, moved.Int4, b.do("ZCARD", protocol.QueueKey(b.key)))
		}
		b.do("DEL", b.guard())
		newcomer := take(protocol.Polls, third)
		b.want(newcomer, protocol.TakeHeld, theirs, theirs)
		if newcomer.Text != theirs || newcomer.Int2 != 0 {
			t.Errorf("a newcomer is told %+v", newcomer)
		}
		b.want(take(protocol.Polls, theirs, later), protocol.TakeMine, theirs, theirs)
		b.send(b.command(protocol.BridgeDrop, waits("", theirs, func(c *protocol.Command) { c.Hand = false })))
		b.want(take(protocol.Polls, third), protocol.TakeFree, third, third)
	})
}

// TestBridgeTriesDoNotWaitTheirTurn: an attempt that will not wait takes what it finds free, or those who only
// try, again and again, would never get anything. The order of those who wait stays.
func TestBridgeTriesDoNotWaitTheirTurn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		passes := waits("", mine, func(c *protocol.Command) { c.Queue = "" })
		b.do("SET", b.guard(), third, "PX", 60000)
		b.send(b.command(protocol.BridgeTake, waits(protocol.Polls, theirs)))
		b.do("DEL", b.guard())
		b.want(b.send(b.command(protocol.BridgeTake, passes)), protocol.TakeFree, mine, mine)
		b.want(b.send(b.command(protocol.BridgeDrop, waits("", mine))), protocol.DropHanded, theirs, theirs)
	})
}

// TestBridgeQueueOfAnotherType: whatever stands on the queue's key, the lock works on.
func TestBridgeQueueOfAnotherType(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		b.do("SET", protocol.QueueKey(b.key), "hostile")
		b.want(b.send(b.command(protocol.BridgeTake, waits("a", mine))), protocol.TakeFree, mine, mine)
		b.want(b.send(b.command(protocol.BridgeTake, waits("b", theirs))), protocol.TakeHeld, mine, mine)
		b.want(b.send(b.command(protocol.BridgeDrop, waits("a", mine))), protocol.DropDone, "-", "-")
	})
}

// TestBridgeQueueWaitsForGapsAndLegacyHolders: the queue keeps its order over both. A lock that is released to a gap is
// handed to nobody.
func TestBridgeQueueWaitsForGapsAndLegacyHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		courteous := func(c *protocol.Command) { c.Yield, c.Gap, c.Held = protocol.YieldKey(c.Key), time.Minute, time.Minute }
		take := func(value string) protocol.Reply {
			return b.send(b.command(protocol.BridgeTake, waits(protocol.Polls, value, courteous)))
		}
		b.want(take(mine), protocol.TakeFree, mine, mine)
		take(theirs)
		take(third)
		b.do("SET", protocol.YieldKey(b.key), fmt.Sprintf("0 %[1]d 60000 100 100 -2 %[1]d 0 60000 0 0", b.now.UnixMilli()-100_000))
		released := b.send(b.command(protocol.BridgeDrop, waits("", mine, courteous)))
		b.want(released, protocol.DropDone, "-", "-")
		for range 2 {
			first, second := take(theirs), take(third)
			b.want(first, protocol.TakeHeld, "-", "-")
			if first.Int2 != 0 || second.Int2 != 1 || first.Int3 <= 0 {
				t.Errorf("in the gap: %+v, %+v", first, second)
			}
		}
		live := b.ago(-time.Minute)
		b.set(live) // a legacy client has used it: the gap is over
		b.want(take(third), protocol.TakeHeld, live, "-")
		b.do("DEL", b.key)
		b.want(take(third), protocol.TakeHeld, theirs, theirs)
	})
}
