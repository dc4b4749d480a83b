package model_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// TestTwinInVirtualTime is TestTwin of package sidecar over the model: the threads of one service on a bare server and behind a sidecar, at the very
// millisecond at which a lease ends, and at those before and after it. The differences are D1, D4, D5, D6 and D12 of docs/sidecar.md.
func TestTwinInVirtualTime(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(redistest.Rounds(2000, 20_000)) {
		g := rand.New(rand.NewPCG(seed, 31))
		d := protocol.Dialects()[g.IntN(8)]
		rules := protocol.Sidecar{Name: "s", Dialect: d, Lease: time.Hour, Alone: g.IntN(2) == 0, Legacy: g.IntN(4) == 0, Grace: time.Second, Settle: 300 * time.Millisecond,
			Far: d.BridgeValue(protocol.BridgeLow, "f0000000-0000-4000-8000-000000000000")}
		var bare, behind model.Store
		now, end := protocol.Instant(1_800_000_000_123e6), protocol.Instant(0)
		texts, story := []string{"flag"}, []string{fmt.Sprintf("%s, modern %v, legacy %v", d, rules.Alone, rules.Legacy)}
	program:
		for n := range 14 {
			lease := time.Duration(3+7*g.IntN(2)) * time.Second
			switch pause := g.IntN(6); {
			case pause < 3 && end > now:
				now = end.Add(time.Duration(pause-1) * time.Millisecond)
			case pause == 3:
				now = now.Add(time.Duration(g.IntN(9000)) * time.Millisecond)
			}
			if e, there := bare.Look(now, "k"); there && e.ExpireMS == 0 { // D1: the text is over, and the token with it
				if at, ok := d.Written(e.Value); ok {
					if _, still := behind.Look(now, "k"); !still && d.Judge(e.Value, now, "nobody") == protocol.Expired && !rules.Legacy {
						bare.Exec(now, 1, 0, &protocol.Command{Op: protocol.Del, Key: "k"})
						met["D1"]++
					} else if !still && at.Add(time.Second) > now && !rules.Legacy {
						break program // the rest of its last second, or millisecond
					}
				}
			}
			c := protocol.Command{Key: "k", Op: []protocol.Op{protocol.SetNX, protocol.SetNX, protocol.Get, protocol.GetSet, protocol.Del, protocol.SetToken, protocol.CompareDel}[g.IntN(7)]}
			text, ends := d.Expiry(now, lease, []string{"0f0e0d0c-0b0a-4908-8706-050403020100", "12-main"}[min(g.IntN(9)/8, 1)])
			if texts = append(texts, text); g.IntN(3) == 0 {
				text = texts[g.IntN(len(texts))]
			}
			c.Value, c.TTL = text, lease
			if written, ok := d.Written(text); ok && !written.Time().After(now.Time()) {
				continue // D2
			}
			if c.Op == protocol.SetNX || c.Op == protocol.GetSet {
				end = ends
			}
			left, there := behind.Look(now, "k")
			_, time := d.Written(left.Value)
			behindIt := rules.Translate(now, c, d.BridgeValue(protocol.BridgeLow+1+int64(n), "e0000000-0000-4000-8000-000000000000"), 0)
			want, got := bare.Exec(now, 1, 0, &c), behind.Exec(now, 1, 0, &behindIt)
			story = append(story, fmt.Sprintf("%v %s -> %s, %s", now.Time().Format("05.000"), model.SayCommand(&c), model.SayReply(&want), model.SayReply(&got)))
			_, guarded := behind.Look(now, protocol.GuardKey("k"))
			after, _ := behind.Look(now, "k")
			switch {
			case there && left.ExpireMS == 0 && time && !rules.Legacy && (want != got || c.Op == protocol.SetNX && after.Value != left.Value): // a loser's GETSET left it over a text with a TTL
				met["D4"]++
			case want == got:
				continue
			case c.Op == protocol.GetSet && want.Kind == protocol.Nil && got.Text == rules.Far:
				met["D5"]++
			case c.Op == protocol.SetNX && got.Int == 0 && d.Breath() > 0 && !rules.Alone && guarded:
				met["D6"]++
			case (c.Op == protocol.SetNX || c.Op == protocol.GetSet) && d.SettlesFree() && !rules.Alone:
				met["D12"]++
			default:
				t.Fatalf("program %d:\n%s", seed, strings.Join(story, "\n"))
			}
			break
		}
	}
	t.Log(met)
}

// TestTimeToTheMillisecond runs the bridge's scripts on a server whose clock stands where the test puts
// it: around the end of a legacy lease and of the grace, every answer, with its wait, must be the model's.
func TestTimeToTheMillisecond(t *testing.T) {
	redistest.Unraced(t) // one goroutine
	s := redistest.Mini(t)
	conn, err := redis.Dial("tcp", s.Addr)
	require.NoError(t, err)
	defer conn.Close()
	g := rand.New(rand.NewPCG(1, 2))
	codes := map[int64]int{}
	for range redistest.Rounds(200, 1000) {
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
