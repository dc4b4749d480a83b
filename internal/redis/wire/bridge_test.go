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
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

func init() { redistest.Handmade = true }

const (
	mine  = "5123456789012345678"
	ttl   = 10 * time.Second
	grace = 2 * time.Second
)

// TestServerReadsExpiriesAsTheMachinesDo compares the Lua parser with ServerExpiry on values of every
// dialect and on mutations of them.
func TestServerReadsExpiriesAsTheMachinesDo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Mini != nil {
			s.Mini.SetTime(time.Now().Truncate(time.Millisecond))
		}
		conn, take := s.Conn(), bridgePair("orders", time.Hour, 0)[0]
		take.Yield, take.Queue = "", ""
		clock := func() protocol.Instant {
			parts, err := redis.Int64s(conn.Do("TIME"))
			require.NoError(t, err)
			return protocol.InstantOf(time.Unix(parts[0], parts[1]*1000))
		}
		began, rng := clock(), rand.New(rand.NewPCG(1, 2))
		dialects := append(protocol.Dialects(), &protocol.Dialect{Name: "colon", Unit: protocol.Seconds, Layout: protocol.NumberColonOwner})
		for _, d := range dialects {
			owner := map[protocol.Layout]string{
				protocol.UUIDColonNumber: "0f0e0d0c-0b0a-4908-8706-050403020100",
				protocol.NumberDashOwner: "123-main", protocol.NumberColonOwner: "77",
			}[d.Layout]
			expired := 0
			for i := range 120 {
				s.Do("DEL", take.Key, take.Guard)
				span := []time.Duration{time.Hour, 10 * time.Second}[i/2%2] // far from now, or near
				value, _ := d.Expiry(began.Add(time.Duration(rng.Int64N(int64(2*span)))-span), time.Second, owner)
				if i%3 == 1 {
					value = mutated(rng, value)
				}
				if i%10 == 2 {
					value = []string{d.BridgeValue(5e18+7, owner), "", "0", "1e3", "+5", "-1", "1.2.3", ".5", "99999999999999999999999999999999999"}[rng.IntN(9)]
				}
				s.Do("SET", take.Key, value)
				ends, ok := d.ServerExpiry(value, clock())
				take.Unit, take.Layout = d.Unit, d.Layout
				reply, err := wire.Do(conn, 5*time.Second, take)
				require.NoError(t, err)
				now := clock()
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

// TestGapsWithoutTheRightToCount: where INFO is refused, gaps come without evidence. TestExamples of internal/redis/scripts has the other rules.
func TestGapsWithoutTheRightToCount(t *testing.T) {
	s := redistest.Real(t)
	s.Do("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-info")
	conn, err := redis.DialContext(context.Background(), "tcp", s.Addr, redis.DialUsername("app"), redis.DialPassword("secret"))
	require.NoError(t, err)
	defer conn.Close()
	pair, codes := bridgePair("orders", 0, 0), [2]int64{protocol.TakeFree, protocol.DropDone}
	state := func() string { return s.Value(protocol.YieldKey("orders")) }
	for try := 0; !strings.HasPrefix(state(), "1 "); try++ {
		require.Less(t, try, 20, "no gap: %q", state())
		for i, c := range pair {
			c.Gap, c.Held = time.Minute, 20*time.Second
			reply, err := wire.Do(conn, 5*time.Second, c)
			require.NoError(t, err)
			require.Equal(t, codes[i], reply.Int)
		}
	}
}
