package wire_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const (
	after = 60 * time.Millisecond  // YieldAfter, and
	most  = 300 * time.Millisecond // YieldAtMost, in the tests of streaks
	gap   = 32 * time.Millisecond
)

// streaks is a bench whose clock the test moves, with the words that members of two versions say.
type streaks struct {
	*bench
	older [2]*redis.Script // acquire and release as they were before gaps could be quiet
}

func newStreaks(t *testing.T, s *redistest.Server) *streaks {
	b := &streaks{bench: newBench(t, s)}
	for i, name := range []string{"bridge_acquire.lua", "bridge_release.lua"} {
		text, err := os.ReadFile(filepath.Join("testdata", "before_quiet", name))
		if err != nil {
			t.Fatal(err)
		}
		b.older[i] = redis.NewScript(5-i, string(text))
	}
	return b
}

func (b *streaks) pass(d time.Duration) {
	if b.s.Mini == nil {
		time.Sleep(d) // the server's own clock has to move
		return
	}
	b.now = b.now.Add(d)
	b.s.Mini.SetTime(b.now)
	b.s.Mini.FastForward(d)
}

func courteous(c *protocol.Command) {
	c.Streak, c.YieldAfter, c.YieldMost, c.Gap = protocol.StreakKey(c.Key), after, most, gap
}

// pair takes the lock and gives it back after a while. It returns how long the key is left free, if it is.
func (b *streaks) pair(quiet bool, held time.Duration) (left time.Duration, free bool) {
	b.Helper()
	c := b.command(protocol.BridgeTake, courteous, waits("a", mine, func(c *protocol.Command) { c.Quiet = quiet }))
	if reply := b.send(c); reply.Int != protocol.TakeFree {
		if reply.Int != protocol.TakeHeld || reply.Text != "" {
			b.Fatalf("a free key: %+v", reply)
		}
		return time.Duration(reply.Int3) * time.Millisecond, true
	}
	b.pass(held)
	drop := b.command(protocol.BridgeDrop, courteous, func(c *protocol.Command) { c.Brief = held < gap/8 })
	b.want(b.send(drop), protocol.DropDone, "-", "-")
	return 0, false
}

// olderPair is the same for a member of the version before.
func (b *streaks) olderPair(held time.Duration) (left time.Duration, free bool) {
	b.Helper()
	streak, line := protocol.StreakKey(b.key), protocol.QueueKey(b.key)
	row, err := redis.Values(b.older[0].Do(b.conn, b.key, b.guard(), protocol.FenceKey(b.key), streak, line,
		theirs, ttl.Milliseconds(), grace.Milliseconds(), "ms", "plain", 3600000, 0, after.Milliseconds(), gap.Milliseconds(), "", 0, 0, ""))
	if err != nil {
		b.Fatal(err)
	}
	if code := row[0].(int64); code != protocol.TakeFree {
		if code != protocol.TakeHeld || len(row[3].([]byte)) > 0 {
			b.Fatalf("a free key, to the version before: %s", row)
		}
		return time.Duration(row[2].(int64)) * time.Millisecond, true
	}
	b.pass(held)
	if _, err := b.older[1].Do(b.conn, b.key, b.guard(), streak, line, theirs, gap.Milliseconds(), ttl.Milliseconds(), ""); err != nil {
		b.Fatal(err)
	}
	return 0, false
}

// untilGap lets holders follow one another until the key is left free, and waits until that is over. It
// returns how long the streak was.
func (b *streaks) untilGap(quiet bool, pair func(n int, quiet bool) (time.Duration, bool)) time.Duration {
	b.Helper()
	began := b.time()
	for n := 0; ; n++ {
		left, free := pair(n, quiet && n == 0)
		if free {
			took := b.time().Sub(began)
			b.pass(left)
			return took
		}
		if b.time().Sub(began) > 20*most {
			b.Fatalf("no gap within %v; the streak is %q", 20*most, b.streak())
		}
	}
}

func (b *streaks) streak() string { return b.s.Value(protocol.StreakKey(b.key)) }

// TestQuietGapsGetRarer: each gap that nobody has used doubles the time to the next one, up to a bound; the
// first that was used, or that nobody has listened in, brings it back.
func TestQuietGapsGetRarer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, held := range []time.Duration{time.Millisecond, gap / 4} { // releases that leave the streak, and that write it
			b := newStreaks(t, s)
			pair := func(_ int, quiet bool) (time.Duration, bool) { return b.pair(quiet, held) }
			for i, want := range []struct {
				quiet bool
				lasts time.Duration
			}{
				{false, after}, {true, 2 * after}, {true, 4 * after}, {true, most}, {true, most}, {false, after}, {true, 2 * after},
			} {
				took := b.untilGap(want.quiet, pair)
				if took <= want.lasts || s.Mini != nil && took > want.lasts+2*held {
					t.Errorf("holds of %v, streak %d took %v, want %v", held, i, took, want.lasts)
				}
			}
			b.do("FLUSHALL")
		}
	})
}

// TestLegacyClientEndsAStreak: whatever shows a legacy client makes the next gap come as soon as the first one.
func TestLegacyClientEndsAStreak(t *testing.T) {
	take := func(b *streaks) protocol.Reply { return b.send(b.command(protocol.BridgeTake, courteous)) }
	held := func(b *streaks, change func()) {
		b.want(take(b), protocol.TakeFree, mine, mine)
		change()
	}
	cases := map[string]func(b *streaks){
		"it holds the key": func(b *streaks) {
			b.set(b.ago(-time.Minute))
			take(b)
			b.do("DEL", b.key)
		},
		"its value has expired": func(b *streaks) {
			b.set(b.ago(time.Minute))
			b.want(take(b), protocol.TakeOver, mine, mine)
			b.send(b.command(protocol.BridgeDrop, courteous))
		},
		"its DEL is found by a renewal": func(b *streaks) {
			held(b, func() { b.do("DEL", b.key) })
			b.want(b.send(b.command(protocol.BridgeExtend, courteous)), protocol.RenewRepair, mine, mine)
			b.send(b.command(protocol.BridgeDrop, courteous))
		},
		"its value is found by a renewal": func(b *streaks) {
			live := b.ago(-time.Minute)
			held(b, func() { b.set(live) })
			b.want(b.send(b.command(protocol.BridgeExtend, courteous)), protocol.RenewTheirs, live, mine)
			b.do("DEL", b.key, b.guard())
		},
		"its DEL is found by a release": func(b *streaks) {
			held(b, func() { b.do("DEL", b.key) })
			b.send(b.command(protocol.BridgeDrop, courteous, func(c *protocol.Command) { c.Brief = true }))
		},
		"its value is found by a release": func(b *streaks) {
			held(b, func() { b.set(b.ago(-time.Minute)) })
			b.send(b.command(protocol.BridgeDrop, courteous, func(c *protocol.Command) { c.Brief = true }))
			b.do("DEL", b.key)
		},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, legacy := range cases {
			t.Run(name, func(t *testing.T) {
				b := newStreaks(t, s)
				b.do("FLUSHALL")
				now := b.time().UnixMilli()
				b.do("SET", protocol.StreakKey(b.key), fmt.Sprintf("000%d %d", now+(most-after).Milliseconds(), now+slow), "PX", 60000)
				legacy(b)
				if streak := b.streak(); strings.HasPrefix(streak, "0") {
					t.Errorf("the streak goes on: %q", streak)
				} else if since, _, found := strings.Cut(streak, " "); found {
					if ms, err := strconv.ParseInt(since, 10, 64); err != nil || ms > b.time().UnixMilli() {
						t.Errorf("the streak goes on: %q", streak)
					}
				}
			})
		}
	})
}

// TestStreaksOfTwoVersions: members of this version and of the one before bear each other's streaks, and
// however their turns are mixed, the key is left free in the end, and no later than after YieldAtMost.
func TestStreaksOfTwoVersions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, older := range map[string]func(n int) bool{
			"in turn":                   func(n int) bool { return n%2 == 0 },
			"in turn, this one first":   func(n int) bool { return n%2 == 1 },
			"mostly the older":          func(n int) bool { return n%5 != 0 },
			"mostly this one":           func(n int) bool { return n%5 == 1 },
			"this one begins":           func(n int) bool { return n > 0 },
			"the older alone":           func(int) bool { return true },
			"the older ends the streak": func(n int) bool { return n > 20 },
		} {
			t.Run(name, func(t *testing.T) {
				b := newStreaks(t, s)
				b.do("FLUSHALL")
				for i := range 4 {
					took := b.untilGap(true, func(n int, quiet bool) (time.Duration, bool) {
						if older(n) {
							return b.olderPair(2 * time.Millisecond)
						}
						return b.pair(quiet, 2*time.Millisecond)
					})
					if took <= after-gap || s.Mini != nil && took > most+4*time.Millisecond {
						t.Errorf("streak %d took %v", i, took)
					}
				}
			})
		}
	})
}

// TestStreakOfLaxerOptionsIsNotBelieved: one whose gaps may not get rarer does not keep to the pace of one
// whose may; neither does anybody believe in a streak of the far future, as a clock that was set back leaves it.
func TestStreakOfLaxerOptionsIsNotBelieved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, c := range map[string]struct {
			ahead time.Duration
			most  time.Duration
		}{
			"of laxer options":  {most - after, after},
			"of the far future": {time.Hour, most},
		} {
			b := newStreaks(t, s)
			b.do("FLUSHALL")
			now := b.time()
			b.do("SET", protocol.StreakKey(b.key), fmt.Sprintf("000%d %d", now.Add(c.ahead).UnixMilli(), now.Add(2*time.Hour).UnixMilli()), "PX", 60000)
			reply := b.send(b.command(protocol.BridgeTake, courteous, func(cmd *protocol.Command) { cmd.YieldMost = c.most }))
			b.want(reply, protocol.TakeFree, mine, mine)
			since, _, _ := strings.Cut(b.streak(), " ")
			if ms, err := strconv.ParseInt(since, 10, 64); err != nil || ms > b.time().UnixMilli() || since[0] == '0' {
				t.Errorf("%s: the streak is %q at %d", name, b.streak(), b.time().UnixMilli())
			}
		}
	})
}
