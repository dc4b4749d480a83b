package wire_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const gap = 60 * time.Millisecond

// gaps is a bench with the state of bridge_yield.lua.
type gaps struct{ *bench }

// state are the numbers of bridge_yield.lua. Times are in milliseconds before now.
type state struct {
	mode, at, credit, owed, waiting, count, noted, due, step, seen int64
}

const stateText = "%d %d %d %d %d %d %d %d %d %d %d"

func yields(c *protocol.Command) { c.Yield, c.Gap = protocol.YieldKey(c.Key), gap }

func held(d time.Duration) func(*protocol.Command) {
	return func(c *protocol.Command) { yields(c); c.Held = d }
}

// setnx is how often the server has run SETNX.
func (g gaps) setnx() int64 {
	g.Helper()
	stats, err := redis.String(g.do("INFO", "commandstats"), nil)
	if err != nil {
		g.Fatal(err)
	}
	found := regexp.MustCompile(`cmdstat_setnx:calls=(\d+)`).FindStringSubmatch(stats)
	if found == nil {
		return 0
	}
	n, _ := strconv.ParseInt(found[1], 10, 64)
	return n
}

func (g gaps) put(s state) {
	g.Helper()
	now := g.time().UnixMilli()
	due := now - s.due
	g.do("SET", protocol.YieldKey(g.key), fmt.Sprintf(stateText, s.mode, now-s.at, s.credit, s.owed, s.waiting, s.count, now-s.noted, due, s.step, s.seen, 0), "PX", 60000)
}

func (g gaps) read() (s state) {
	g.Helper()
	now, text := g.time().UnixMilli(), g.s.Value(protocol.YieldKey(g.key))
	var ends int64
	if _, err := fmt.Sscanf(text, stateText, &s.mode, &s.at, &s.credit, &s.owed, &s.waiting, &s.count, &s.noted, &s.due, &s.step, &s.seen, &ends); err != nil {
		g.Fatalf("the state is %q", text)
	}
	s.at, s.noted, s.due = now-s.at, now-s.noted, now-s.due
	return s
}

// turn takes the key and gives it back after a hold. It tells whether a gap follows.
func (g gaps) turn(held time.Duration) bool {
	g.Helper()
	g.want(g.send(g.command(protocol.BridgeTake, yields)), protocol.TakeFree, mine, mine)
	return g.giveBack(held)
}

func (g gaps) giveBack(d time.Duration) bool {
	g.Helper()
	g.want(g.send(g.command(protocol.BridgeDrop, held(d))), protocol.DropDone, "-", "-")
	reply := g.send(g.command(protocol.BridgeTake, yields, func(c *protocol.Command) { c.Value = theirs }))
	if reply.Int == protocol.TakeFree {
		g.send(g.command(protocol.BridgeDrop, func(c *protocol.Command) { c.Value = theirs }))
		return false
	}
	g.want(reply, protocol.TakeHeld, "-", "-")
	within(g, "the wait", reply.Int3, gap.Milliseconds(), gap.Milliseconds()-1)
	return true
}

func eachGaps(t *testing.T, test func(t *testing.T, g gaps)) {
	s := redistest.Real(t)
	test(t, gaps{newBench(t, s)})
}

// ready is a state in which only the count of SETNX decides about a gap.
func (g gaps) ready() state {
	return state{at: 100, credit: 50, owed: 50, waiting: 100, count: g.setnx(), noted: 100, due: 1, step: gap.Milliseconds()}
}

// TestGapsComeByEvidence: a gap comes where SETNX has been sent since the last look, and where nobody can tell; it does not
// where old clients are ahead, where nothing was saved, or where it is too early.
func TestGapsComeByEvidence(t *testing.T) {
	cases := []struct {
		name   string
		change func(g gaps, s *state)
		gap    bool
	}{
		{"SETNX stands still", func(gaps, *state) {}, false},
		{"SETNX was sent", func(_ gaps, s *state) { s.count-- }, true},
		{"SETNX was sent, the counts were reset", func(_ gaps, s *state) { s.count += 1000 }, true},
		{"the count says nothing", func(_ gaps, s *state) { s.count = -2 }, true},
		{"nobody has counted yet", func(_ gaps, s *state) { s.count = -1 }, false},
		{"no look yet, old clients waited at the last one", func(_ gaps, s *state) { s.noted = 0 }, true},
		{"no look yet, nobody waited at the last one", func(_ gaps, s *state) { s.noted, s.waiting = 0, 0 }, false},
		{"the last look is long ago", func(_ gaps, s *state) { s.count--; s.noted = 5000 }, false},
		{"SETNX was sent, too early", func(_ gaps, s *state) { s.count--; s.due = -10000 }, false},
		{"SETNX was sent, nothing was saved", func(_ gaps, s *state) { s.count--; s.credit = 0 }, false},
		{"SETNX was sent, old clients are ahead", func(_ gaps, s *state) { s.count--; s.owed = -200 }, false},
		{"SETNX stands still, no gap for half a minute", func(_ gaps, s *state) { s.at = 30001 }, true},
		{"a state of the future", func(_ gaps, s *state) { s.count--; s.at = -1000000 }, false},
	}
	eachGaps(t, func(t *testing.T, g gaps) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				b := gaps{&bench{t, g.s, g.conn, g.key, g.now}}
				b.do("FLUSHALL")
				b.do("SETNX", "other", 1)
				s := b.ready()
				c.change(b, &s)
				b.want(b.send(b.command(protocol.BridgeTake)), protocol.TakeFree, mine, mine)
				b.put(s)
				if got := b.giveBack(5 * time.Millisecond); got != c.gap {
					t.Errorf("a gap: %v, want %v; the state is %+v", got, c.gap, b.read())
				}
			})
		}
	})
}

// TestTokensOfOthersAreOldTurns: who waits for a token of another library counts it as a turn of an old client, so that the next gap
// comes without a count of SETNX. Tokens of our own, which are numbers from 5e18, do not count.
func TestTokensOfOthersAreOldTurns(t *testing.T) {
	eachGaps(t, func(t *testing.T, g gaps) {
		for value, mode := range map[string]int64{
			"0f0e0d0c-0b0a-4908-8706-050403020100": 2, "1795357950626000000": 2, "17953579506260": 2, "5795357950626000000": 0, "9100000000000000000": 0,
		} {
			g.do("FLUSHALL")
			g.put(g.ready())
			g.do("SET", g.key, value, "PX", 1000)
			g.send(g.command(protocol.BridgeTake, yields))
			if got := g.read().mode; got != mode {
				t.Errorf("%s: mode %d, want %d", value, got, mode)
			}
		}
	})
}

// TestGapOfNoUse: nobody has come. The next gap comes twice as late, up to sixteen gaps.
func TestGapOfNoUse(t *testing.T) {
	eachGaps(t, func(t *testing.T, g gaps) {
		step := gap.Milliseconds()
		for _, want := range []int64{2 * step, 4 * step, 8 * step, 16 * step, 16 * step} {
			g.put(state{mode: 1, at: gap.Milliseconds(), credit: 50, owed: 100, waiting: 100, count: g.setnx(), step: step})
			g.want(g.send(g.command(protocol.BridgeTake, yields)), protocol.TakeFree, mine, mine)
			s := g.read()
			if s.mode != 0 || s.credit != 0 || s.owed != 0 || s.step != want || -s.due > want || -s.due < want-slow {
				t.Errorf("after a gap of no use with a step of %d: %+v", step, s)
			}
			g.giveBack(0)
			step = s.step
		}
		g.put(state{mode: 1, at: gap.Milliseconds(), waiting: 100, count: -2, step: 16 * gap.Milliseconds()})
		g.send(g.command(protocol.BridgeTake, yields))
		if s := g.read(); s.count != -1 {
			t.Errorf("gaps without evidence that nobody has used for long: %+v", s)
		}
	})
}

// TestOldClientUsesAGap: its turn ends the gap, uses up the credit and is counted; after its DEL the key is taken at once, or
// left to old clients once more.
func TestOldClientUsesAGap(t *testing.T) {
	eachGaps(t, func(t *testing.T, g gaps) {
		live := g.ago(-time.Minute)
		for _, c := range []struct {
			owed  int64
			other bool // another old client has sent SETNX meanwhile
			again bool
		}{{100, true, false}, {200, true, true}, {200, false, false}} {
			g.do("FLUSHALL")
			g.put(state{mode: 1, at: 20, credit: 70, owed: c.owed, waiting: 200, count: g.setnx(), due: -500, step: 4 * gap.Milliseconds(), seen: g.setnx()})
			g.do("SETNX", g.key, live)
			for range 3 { // however many look
				g.want(g.send(g.command(protocol.BridgeTake, yields)), protocol.TakeHeld, live, "-")
			}
			s := g.read()
			if s.mode != 2 || s.owed != c.owed-100 || s.credit > 50 || s.step != gap.Milliseconds() || s.count < 0 {
				t.Errorf("an old client has its turn: %+v", s)
			}
			g.put(state{mode: 2, at: 50, credit: 40, owed: c.owed - 100, waiting: 200, count: s.count, noted: 10, due: 1, step: s.step, seen: s.seen})
			if c.other { // within what two waiting clients send in that time
				g.do("SETNX", g.key, live)
			}
			g.do("DEL", g.key)
			reply := g.send(g.command(protocol.BridgeTake, yields))
			if again := reply.Int == protocol.TakeHeld; again != c.again {
				t.Errorf("bridge clients were %d hundredths of a turn ahead: %+v", c.owed, reply)
			}
		}
	})
}

// TestOldClientsThatSendNoSETNX: one has the key although the count stood still. Then the count says nothing.
func TestOldClientsThatSendNoSETNX(t *testing.T) {
	eachGaps(t, func(t *testing.T, g gaps) {
		g.put(state{at: 20, count: g.setnx(), step: gap.Milliseconds()})
		g.do("SET", g.key, g.ago(-time.Minute), "NX")
		g.send(g.command(protocol.BridgeTake, yields))
		g.do("DEL", g.key)
		if s := g.read(); s.count != -2 || s.waiting != 100 {
			t.Errorf("an old client without SETNX: %+v", s)
		}
	})
}

// TestGapsWithoutTheRightToCount: where INFO is refused, gaps come without evidence.
func TestGapsWithoutTheRightToCount(t *testing.T) {
	eachGaps(t, func(t *testing.T, g gaps) {
		g.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
		conn, err := redis.DialContext(context.Background(), "tcp", g.s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		admin := g.conn
		g.conn = conn
		for try := 0; !g.turn(20 * time.Millisecond); try++ {
			if try > 20 {
				t.Fatalf("no gap in %d turns: %q", try, g.s.Value(protocol.YieldKey(g.key)))
			}
		}
		g.conn = admin
	})
}

// TestUsualPairLeavesNothing: a key that nobody waits for, held for a moment, has no state; neither has one that
// leaves no gaps. What other pairs leave is gone within a minute.
func TestUsualPairLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		g := gaps{newBench(t, s)}
		plain := func(c *protocol.Command) { c.Fence = "" }
		for name, change := range map[string]func(*protocol.Command){"short": yields, "no gaps": func(c *protocol.Command) { c.Held = time.Second }} {
			g.send(g.command(protocol.BridgeTake, plain, change))
			g.send(g.command(protocol.BridgeDrop, plain, change))
			if n, _ := redis.Int(g.do("DBSIZE"), nil); n != 0 {
				t.Errorf("%s: %d keys are left", name, n)
			}
		}
		g.do("ZADD", protocol.QueueKey(g.key), 1, "1000 0 1 wake a")
		g.send(g.command(protocol.BridgeTake, yields))
		g.send(g.command(protocol.BridgeDrop, held(time.Second), func(c *protocol.Command) { c.Queue = protocol.QueueKey(c.Key) }))
		if left, _ := redis.Int64(g.do("PTTL", protocol.YieldKey(g.key)), nil); left <= 0 || left > 60000 {
			t.Errorf("the state lasts %d ms", left)
		}
	})
}

// TestDamagedStateMattersNotToTheLock: whatever stands there, the key is taken and given back.
func TestDamagedStateMattersNotToTheLock(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		g := gaps{newBench(t, s)}
		for _, text := range []string{"", "1", "1 2 3 4 5 6 7 8 9 10 11", "1 9999999999999 0 0 0 0 0 0 0 0", "x" + strings.Repeat(" 1", 9), "1 1 1 1 1 1 1 1 1 " + strings.Repeat("9", 400)} {
			g.do("SET", protocol.YieldKey(g.key), text)
			g.turn(10 * time.Millisecond)
			g.do("DEL", protocol.YieldKey(g.key))
		}
		g.do("RPUSH", protocol.YieldKey(g.key), "list")
		g.turn(10 * time.Millisecond)
	})
}
