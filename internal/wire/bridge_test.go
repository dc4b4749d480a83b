package wire_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
				assert.False(t, reply.Int != want && (!ok || max(now.Sub(ends.Add(grace)), ends.Add(grace).Sub(now)) > 2*time.Second), "%s reads %q as %+v, want code %d (expiry %v, %v)", d.Name, value, reply, want, ends.Time(), ok)
			}
			assert.True(t, expired >= 10, "%s: only %d of the values had expired", d.Name, expired)
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
		require.False(t, time.Now().After(deadline), "the cluster does not come up: %s %v", info, err)
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

// TestGapsWithoutTheRightToCount: where INFO is refused, gaps come without evidence. TestExamples of internal/scripts has the other rules.
func TestGapsWithoutTheRightToCount(t *testing.T) {
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
	conn, err := redis.DialContext(context.Background(), "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
	require.NoError(t, err)
	defer conn.Close()
	b := newBench(t, s)
	b.conn = conn
	yields := func(c *protocol.Command) {
		c.Yield, c.Gap, c.Held = protocol.YieldKey(c.Key), time.Minute, 20*time.Second
	}
	for try := 0; !strings.HasPrefix(s.Value(protocol.YieldKey(b.key)), "1 "); try++ {
		require.Less(t, try, 20, "no gap: %q", s.Value(protocol.YieldKey(b.key)))
		b.want(b.send(b.command(protocol.BridgeTake, yields)), protocol.TakeFree, mine, mine)
		b.want(b.send(b.command(protocol.BridgeDrop, yields)), protocol.DropDone, "-", "-")
	}
}
