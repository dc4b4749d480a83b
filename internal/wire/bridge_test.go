package wire_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

func init() { redistest.Handmade = true }

const (
	mine   = "5123456789012345678"
	theirs = "6123456789012345678"
	ttl    = 10 * time.Second
	grace  = 2 * time.Second
)

// bench is one key and its neighbours on one server.
type bench struct {
	*testing.T
	s    *redistest.Server
	conn redis.Conn
	key  string
	now  time.Time // the server's clock
}

func newBench(t *testing.T, s *redistest.Server) *bench {
	b := &bench{T: t, s: s, conn: s.Conn(), key: "orders"}
	if s.Mini != nil {
		s.Mini.SetTime(time.Now().Truncate(time.Millisecond))
	}
	b.now = b.time()
	return b
}

func (b *bench) time() time.Time {
	b.Helper()
	parts, err := redis.Int64s(b.conn.Do("TIME"))
	if err != nil {
		b.Fatal(err)
	}
	return time.Unix(parts[0], parts[1]*1000)
}

func (b *bench) guard() string { return protocol.GuardKey(b.key) }

func (b *bench) do(name string, args ...any) any {
	b.Helper()
	reply, err := b.conn.Do(name, args...)
	if err != nil {
		b.Fatalf("%s %v: %v", name, args, err)
	}
	return reply
}

// set puts a value on the key as a legacy client does: without a TTL.
func (b *bench) set(value string) { b.Helper(); b.do("SET", b.key, value) }

// expired returns a legacy value whose expiry was d ago.
func (b *bench) ago(d time.Duration) string {
	return strconv.FormatInt(b.now.Add(-d).UnixMilli(), 10)
}

func (b *bench) command(op protocol.Op, change ...func(*protocol.Command)) protocol.Command {
	c := protocol.Command{
		Op: op, Key: b.key, Guard: b.guard(), Value: mine, TTL: ttl, Grace: grace,
		Fence: protocol.FenceKey(b.key), FenceTTL: time.Hour,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func (b *bench) send(c protocol.Command) protocol.Reply {
	b.Helper()
	reply, err := wire.Do(b.conn, 5*time.Second, c)
	if err != nil && reply.Kind != protocol.Fault {
		b.Fatal(err)
	}
	return reply
}

// want checks a reply's code and what stands on the two keys; "-" means that a key must be absent.
func (b *bench) want(reply protocol.Reply, code int64, key, guard string) {
	b.Helper()
	if reply.Kind != protocol.Integer || reply.Int != code {
		b.Errorf("reply %+v, want code %d", reply, code)
	}
	for name, value := range map[string]string{b.key: key, b.guard(): guard} {
		got, err := redis.String(b.do("GET", name), nil)
		if err == redis.ErrNil {
			got = "-"
		}
		if got != value {
			b.Errorf("%s holds %q, want %q", name, got, value)
		}
		if value == mine {
			if left, _ := redis.Int64(b.do("PTTL", name), nil); left <= 0 || left > ttl.Milliseconds() {
				b.Errorf("%s has a TTL of %d ms, want up to %d", name, left, ttl.Milliseconds())
			}
		}
	}
}

func within(t testing.TB, what string, got, want, slack int64) {
	t.Helper()
	if got > want || got < want-slack {
		t.Errorf("%s is %d, want %d, up to %d less", what, got, want, slack)
	}
}

// slow is how much later a command may run than the bench read the clock.
const slow = 2000

func TestBridgeTake(t *testing.T) {
	cases := []struct {
		name  string
		setup func(b *bench)
		code  int64
		key   string // what stands on the key afterwards; "same": what stood before
		guard string
		wait  int64 // milliseconds until the next look; -2: not looked at
	}{
		{"free", func(*bench) {}, protocol.TakeFree, mine, mine, -2},
		{"expired by more than the grace", func(b *bench) { b.set(b.ago(grace + 5*time.Second)) }, protocol.TakeOver, mine, mine, -2},
		{"expired within the grace", func(b *bench) { b.set(b.ago(grace - 1500*time.Millisecond)) }, protocol.TakeHeld, "same", "-", 1501},
		{"live", func(b *bench) { b.set(b.ago(-30 * time.Second)) }, protocol.TakeHeld, "same", "-", 32001},
		{"a modern token", func(b *bench) { b.do("SET", b.key, "a3f0-token", "PX", 7000) }, protocol.TakeHeld, "same", "-", 7000},
		{"an old number with a TTL", func(b *bench) { b.do("SET", b.key, "27", "PX", 7000) }, protocol.TakeHeld, "same", "-", 7000},
		{"a token without TTL", func(b *bench) { b.set("a3f0-token") }, protocol.TakeForeign, "same", "-", -1},
		{"a bridge value without TTL", func(b *bench) { b.set(theirs) }, protocol.TakeForeign, "same", "-", -1},
		{"seconds on a key of milliseconds", func(b *bench) { b.set(strconv.FormatInt(b.now.Unix()-60, 10)) }, protocol.TakeForeign, "same", "-", -1},
		{"a small number", func(b *bench) { b.set("1") }, protocol.TakeForeign, "same", "-", -1},
		{"nothing at all", func(b *bench) { b.set("") }, protocol.TakeForeign, "same", "-", -1},
		{"a hash", func(b *bench) { b.do("HSET", b.key, "a:1", 1); b.do("PEXPIRE", b.key, 9000) }, protocol.TakeForeign, "hash", "-", 9000},
		{"ours already", func(b *bench) { b.do("SET", b.key, mine, "PX", 500); b.do("SET", b.guard(), mine, "PX", 500) }, protocol.TakeMine, mine, mine, -2},
		{"the guard ours, the key gone", func(b *bench) { b.do("SET", b.guard(), mine, "PX", 500) }, protocol.TakeMine, mine, mine, -2},
		{"the guard ours, the key theirs", func(b *bench) { b.do("SET", b.guard(), mine, "PX", 500); b.set(b.ago(-30 * time.Second)) }, protocol.TakeHeld, "same", "-", 32001},
		{"guarded, the key gone", func(b *bench) { b.do("SET", b.guard(), theirs, "PX", 4000) }, protocol.TakeHeld, "-", theirs, 4000},
		{"guarded, the key expired", func(b *bench) { b.do("SET", b.guard(), theirs, "PX", 4000); b.set(b.ago(time.Minute)) }, protocol.TakeHeld, "same", theirs, 4000},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				b := newBench(t, s)
				b.do("FLUSHALL")
				c.setup(b)
				reply := b.send(b.command(protocol.BridgeTake))
				key := c.key
				switch key {
				case "same":
					key = reply.Text
					if c.guard == theirs {
						key = b.s.Value(b.key)
					}
				case "hash":
					if reply.Text != "hash" || reply.Int != c.code {
						t.Errorf("reply %+v", reply)
					}
					b.do("DEL", b.key)
					key, reply.Int = "-", c.code
				}
				b.want(reply, c.code, key, c.guard)
				if c.wait != -2 {
					within(t, "the wait", reply.Int3, c.wait, min(slow, max(c.wait, 0)))
				}
				if c.code > 0 {
					within(t, "the fencing token", reply.Int2, b.time().UnixMicro(), 60_000_000)
				}
			})
		}
	})
}

func TestBridgeTakeDoesNotTakeOverWhereItMayNot(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		old := b.ago(time.Minute)
		b.set(old)
		b.want(b.send(b.command(protocol.BridgeTake, func(c *protocol.Command) { c.Grace = protocol.NoTakeover })), protocol.TakeRefused, old, "-")
	})
}

func TestBridgeFenceGrowsWhateverTheClockDoes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		ahead := b.now.Add(time.Hour).UnixMicro()
		b.do("SET", protocol.FenceKey(b.key), ahead)
		if reply := b.send(b.command(protocol.BridgeTake)); reply.Int2 != ahead+1 {
			t.Errorf("fencing token %d after %d", reply.Int2, ahead)
		}
		b.send(b.command(protocol.BridgeDrop))
		if reply := b.send(b.command(protocol.BridgeTake)); reply.Int2 != ahead+2 {
			t.Errorf("fencing token %d after %d", reply.Int2, ahead+1)
		}
		b.send(b.command(protocol.BridgeDrop))
		if reply := b.send(b.command(protocol.BridgeTake, func(c *protocol.Command) { c.Fence = "" })); reply.Int2 != 0 {
			t.Errorf("fencing token %d without a counter", reply.Int2)
		}
	})
}

func TestBridgeSettle(t *testing.T) {
	cases := []struct {
		name       string
		setup      func(b *bench)
		code       int64
		key, guard string
	}{
		{"nothing came", func(*bench) {}, protocol.SettleDone, mine, mine},
		{"deleted", func(b *bench) { b.do("DEL", b.key) }, protocol.SettleAgain, mine, mine},
		{"a live legacy value: withdraw", func(b *bench) { b.set(b.ago(-time.Minute)) }, protocol.SettleLeft, "same", "-"},
		{"a legacy value over by more than the grace", func(b *bench) { b.set(b.ago(time.Minute)) }, protocol.SettleAgain, mine, mine},
		{"a legacy value over, within the grace", func(b *bench) { b.set(b.ago(0)) }, protocol.SettleLeft, "same", "-"},
		{"a token", func(b *bench) { b.do("SET", b.key, "token", "PX", 5000) }, protocol.SettleLeft, "same", "-"},
		{"foreign text", func(b *bench) { b.set("text") }, protocol.SettleLeft, "same", "-"},
		{"the guard gone", func(b *bench) { b.do("DEL", b.guard()) }, protocol.SettleLost, mine, "-"},
		{"the guard theirs", func(b *bench) { b.do("SET", b.guard(), theirs) }, protocol.SettleLost, mine, theirs},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				b := newBench(t, s)
				b.do("FLUSHALL")
				b.send(b.command(protocol.BridgeTake))
				c.setup(b)
				key := c.key
				if key == "same" {
					key = b.s.Value(b.key)
				}
				reply := b.send(b.command(protocol.BridgeSettle))
				b.want(reply, c.code, key, c.guard)
			})
		}
	})
}

func TestBridgeRenewAndRelease(t *testing.T) {
	cases := []struct {
		name         string
		setup        func(b *bench)
		renew        int64
		key, guard   string // after the renewal
		release      int64
		kept, keeper string // after a release instead
	}{
		{"held", func(*bench) {}, protocol.RenewDone, mine, mine, protocol.DropDone, "-", "-"},
		{"a stale DEL", func(b *bench) { b.do("DEL", b.key) }, protocol.RenewRepair, mine, mine, protocol.DropRepaired, "-", "-"},
		{"the guard evicted", func(b *bench) { b.do("DEL", b.guard()) }, protocol.RenewRepair, mine, mine, protocol.DropDone, "-", "-"},
		{"a legacy client came in", func(b *bench) { b.set(b.ago(-time.Minute)) }, protocol.RenewTheirs, "same", mine, protocol.DropTheirs, "same", "-"},
		{"a modern client came in", func(b *bench) { b.do("SET", b.key, "token", "PX", 5000) }, protocol.RenewTheirs, "same", mine, protocol.DropTheirs, "same", "-"},
		{"both gone", func(b *bench) { b.do("DEL", b.key, b.guard()) }, protocol.RenewLost, "-", "-", protocol.DropNothing, "-", "-"},
		{"a successor holds both", func(b *bench) { b.do("MSET", b.key, theirs, b.guard(), theirs) }, protocol.RenewLost, theirs, theirs, protocol.DropNothing, theirs, theirs},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, c := range cases {
			for _, op := range []protocol.Op{protocol.BridgeExtend, protocol.BridgeDrop} {
				t.Run(fmt.Sprint(c.name, op), func(t *testing.T) {
					b := newBench(t, s)
					b.do("FLUSHALL")
					b.send(b.command(protocol.BridgeTake))
					c.setup(b)
					code, key, guard := c.renew, c.key, c.guard
					if op == protocol.BridgeDrop {
						code, key, guard = c.release, c.kept, c.keeper
					}
					if key == "same" {
						key = b.s.Value(b.key)
					}
					b.want(b.send(b.command(op)), code, key, guard)
				})
			}
		}
	})
}

// TestServerReadsExpiriesAsTheMachinesDo compares the Lua parser with ServerExpiry on values of every
// dialect and on mutations of them.
func TestServerReadsExpiriesAsTheMachinesDo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		rng := rand.New(rand.NewPCG(1, 2))
		dialects := append(protocol.Dialects(), &protocol.Dialect{Name: "colon", Unit: protocol.Seconds, Layout: protocol.NumberColonOwner})
		for _, d := range dialects {
			owner := map[protocol.Layout]string{
				protocol.UUIDColonNumber: "0f0e0d0c-0b0a-4908-8706-050403020100",
				protocol.NumberDashOwner: "123-main", protocol.NumberColonOwner: "77",
			}[d.Layout]
			expired := 0
			for i := range 120 {
				b.do("DEL", b.key, b.guard())
				value, _ := d.Expiry(protocol.InstantOf(b.now.Add(time.Duration(rng.Int64N(int64(2*time.Hour)))-time.Hour)), time.Second, owner)
				if i%3 == 1 {
					value = mutated(rng, value)
				}
				if i%10 == 2 {
					value = []string{d.BridgeValue(5e18+7, owner), "", "0", "1e3", "+5", "-1", "1.2.3", ".5", "99999999999999999999999999999999999"}[rng.IntN(9)]
				}
				b.set(value)
				ends, ok := d.ServerExpiry(value, protocol.InstantOf(b.time()))
				reply := b.send(b.command(protocol.BridgeTake, func(c *protocol.Command) { c.Unit, c.Layout = d.Unit, d.Layout }))
				now := protocol.InstantOf(b.time())
				want := int64(protocol.TakeForeign)
				if ok {
					want = protocol.TakeHeld
					if now > ends.Add(grace) {
						want, expired = protocol.TakeOver, expired+1
					}
				}
				if reply.Int != want && (!ok || max(now.Sub(ends.Add(grace)), ends.Add(grace).Sub(now)) > 2*time.Second) {
					t.Errorf("%s reads %q as %+v, want code %d (expiry %v, %v)", d.Name, value, reply, want, ends.Time(), ok)
				}
			}
			if expired < 10 {
				t.Errorf("%s: only %d of the values had expired", d.Name, expired)
			}
		}
	})
}

func mutated(rng *rand.Rand, value string) string {
	bytes := []byte(value)
	at := rng.IntN(len(bytes))
	switch rng.IntN(3) {
	case 0:
		bytes[at] = "0123456789-:.\" +ex\x00"[rng.IntN(19)]
	case 1:
		bytes = append(bytes[:at], bytes[at+1:]...)
	default:
		bytes = append(bytes[:at], append([]byte{"0123456789-:.\" "[rng.IntN(15)]}, bytes[at:]...)...)
	}
	return string(bytes)
}

// TestCompanionKeysOnACluster: a real server in cluster mode refuses a script whose keys are in several
// slots (CROSSSLOT); none of ours is, whatever the lock's key looks like.
func TestCompanionKeysOnACluster(t *testing.T) {
	s := redistest.Real(t, "--cluster-enabled", "yes")
	s.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	b := newBench(t, s)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info, err := redis.String(b.do("CLUSTER", "INFO"), nil)
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster does not come up: %s %v", info, err)
		}
	}
	for _, key := range []string{"orders", "{orders}", "{7}orders", "a}b", "{}a", "{a", "a{}{b}", "}{", "{{a}}", "lock.\x00\xff"} {
		b.key = key
		change := func(c *protocol.Command) {
			c.Yield, c.Gap, c.Queue, c.Entry = protocol.YieldKey(key), time.Second, protocol.QueueKey(key), "1000 0 1 wake "+mine
		}
		b.want(b.send(b.command(protocol.BridgeTake, change)), protocol.TakeFree, mine, mine)
		b.want(b.send(b.command(protocol.BridgeSettle)), protocol.SettleDone, mine, mine)
		b.want(b.send(b.command(protocol.BridgeExtend, change)), protocol.RenewDone, mine, mine)
		b.want(b.send(b.command(protocol.BridgeDrop, change)), protocol.DropDone, "-", "-")
	}
}
