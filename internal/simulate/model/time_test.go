package model_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// TestTimeToTheMillisecond runs the bridge's scripts on a server whose clock stands where the test puts
// it: around the end of a legacy lease and of the grace, every answer, with its wait, must be the model's.
func TestTimeToTheMillisecond(t *testing.T) {
	s := redistest.Mini(t)
	conn, err := redis.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer conn.Close()
	g := rand.New(rand.NewPCG(1, 2))
	codes := map[int64]int{}
	for range 1000 {
		require.NoError(t, conn.Send("FLUSHALL"))
		var store model.Store
		dialects := protocol.Dialects()
		d := dialects[g.IntN(len(dialects))]
		grace := time.Duration(g.IntN(3)) * 700 * time.Millisecond
		began := protocol.Instant(1_700_000_000_000+g.Int64N(1_000_000)) * protocol.Instant(time.Millisecond)
		value, ends := d.Expiry(began, time.Duration(g.IntN(4000))*time.Millisecond, "0f0e0d0c-0b0a-4908-8706-050403020100")
		now := ends.Add(grace).Add(time.Duration(g.Int64N(3_000)-1_500) * time.Millisecond)
		if g.IntN(2) == 0 { // right at the edge, which the coarse units put up to a second later
			now = ends.Add(grace).Add(time.Duration(g.IntN(2))*time.Second + time.Duration(g.IntN(7)-3)*time.Millisecond)
		}
		now = now / 1e6 * 1e6
		s.Mini.SetTime(now.Time())
		commands := []protocol.Command{
			{Op: protocol.SetNX, Key: "k", Value: value},
			{Op: protocol.BridgeTake, Key: "k", Guard: "g", Value: "6000000000000000000", TTL: time.Minute, Grace: grace,
				Unit: d.Unit, Layout: d.Layout, Fence: "f", FenceTTL: time.Hour},
			{Op: protocol.GetSet, Key: "k", Value: value},
			{Op: protocol.BridgeSettle, Key: "k", Guard: "g", Value: "6000000000000000000", TTL: time.Minute, Grace: grace,
				Unit: d.Unit, Layout: d.Layout},
			{Op: protocol.BridgeExtend, Key: "k", Guard: "g", Value: "6000000000000000000", TTL: time.Minute, NotAfter: now.Add(time.Duration(g.IntN(3)-1) * time.Millisecond)},
		}
		for i := range commands {
			got, err := wire.Do(conn, time.Minute, commands[i])
			if got.Kind != protocol.Fault {
				require.NoError(t, err)
			}
			want := store.Exec(now, 1, 0, &commands[i])
			if got.Kind == protocol.Fault { // the texts of miniredis differ
				got.Text, want.Text = "", ""
			}
			require.Equal(t, want, got, "%s, %q at %v, grace %v, op %d", d.Name, value, now.Time(), grace, commands[i].Op)
			codes[int64(commands[i].Op)*10+got.Int]++
		}
	}
	for _, code := range []int64{protocol.TakeOver, protocol.TakeHeld} {
		require.Positive(t, codes[int64(protocol.BridgeTake)*10+code])
	}
}
