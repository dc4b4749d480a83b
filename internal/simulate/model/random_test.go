package model_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// random makes a sequence on one key, with a few values and TTLs that are far apart, so that
// comparisons succeed and fail in equal parts and the seconds that a run takes decide nothing.
func random(g *rand.Rand, key string) []question {
	pick := func(of ...string) string { return of[g.IntN(len(of))] }
	values := []string{"5000000000000000001", "5000000000000000002", "1000", "token"}
	ttl := func() time.Duration { return time.Duration(1+g.IntN(3)) * 1000000 * time.Second }
	family := families[g.IntN(len(families))]
	dialects := append(protocol.Dialects(), slices.Repeat([]*protocol.Dialect{protocol.RedisPyFloat}, 4)...) // its leases may never end
	d := dialects[g.IntN(len(dialects))]
	sequence := append(make([]question, 0, 16), question{special: 'r'})
	for range 3 + g.IntN(9) {
		q := question{command: protocol.Command{
			Op: family[g.IntN(len(family))], Key: key, Value: pick(values[:2+g.IntN(3)]...), Old: pick(values[:2]...),
			TTL: ttl(), Claim: ttl(), QueueTTL: ttl(), FenceTTL: ttl(), Channel: pick(heard, heard, "unheard", protocol.Polls), Queue: key + ":q",
		}}
		if g.IntN(2) == 0 {
			q.command.Fence = key + ":f"
		} else {
			q.command.FenceTTL = 0
		}
		if q.command.Op == protocol.QueueRelease && g.IntN(2) == 0 {
			q.command.Channel = ""
		}
		legacyValue(g, d, &q.command)
		if q.command.Op >= protocol.SidecarTake {
			sidecarCall(g, d, &q.command)
		}
		switch g.IntN(8) {
		case 0:
			q.special = 's'
		case 1:
			q.special = 'x'
		}
		sequence = append(sequence, q)
	}
	return append(sequence, question{command: protocol.Command{Op: protocol.Unwatch}},
		question{command: protocol.Command{Op: protocol.Get, Key: key}}, question{command: protocol.Command{Key: key}, special: 's'})
}

// families are commands that meet on a key.
var families = [][]protocol.Op{
	{protocol.SetNX, protocol.Get, protocol.GetSet, protocol.Del, protocol.CompareDel, protocol.CompareSet},
	{protocol.SetNX, protocol.Get, protocol.Watch, protocol.Watch, protocol.Unwatch, protocol.Commit, protocol.Commit, protocol.Del, protocol.GetSet},
	{protocol.SetToken, protocol.Take, protocol.Extend, protocol.CompareDel, protocol.SetNX, protocol.GetSet, protocol.Get},
	{protocol.Queue, protocol.Queue, protocol.Queue, protocol.QueueRelease, protocol.Extend, protocol.Take},
	{protocol.Queue, protocol.Queue, protocol.QueueRelease, protocol.QueueRelease, protocol.SetNX, protocol.GetSet},
	{protocol.RedissonTake, protocol.RedissonTake, protocol.RedissonExtend, protocol.RedissonRelease, protocol.Get, protocol.Del},
	{protocol.BridgeTake, protocol.BridgeTake, protocol.BridgeSettle, protocol.BridgeExtend, protocol.BridgeDrop, protocol.Del},
	{protocol.BridgeTake, protocol.BridgeTake, protocol.BridgeSettle, protocol.BridgeExtend, protocol.BridgeDrop, protocol.SetNX, protocol.GetSet, protocol.Del, protocol.SetToken},
	{protocol.BridgeTake, protocol.BridgeTake, protocol.BridgeTake, protocol.BridgeDrop, protocol.BridgeDrop, protocol.Del},
	{protocol.BridgeTake, protocol.BridgeTake, protocol.BridgeDrop, protocol.Queue, protocol.Queue, protocol.QueueRelease, protocol.Del},
	{protocol.BridgeTake, protocol.GetSet, protocol.BridgeSettle, protocol.BridgeSettle},
	{protocol.BridgeTake, protocol.GetSet, protocol.BridgeSettle, protocol.BridgeExtend},
	{protocol.BridgeTake, protocol.BridgeSettle, protocol.BridgeExtend, protocol.RedissonTake, protocol.SetNX, protocol.GetSet, protocol.CompareSet},
	{protocol.SidecarTake, protocol.SidecarTake, protocol.SidecarTake, protocol.SidecarGet, protocol.SidecarDel, protocol.SidecarDel, protocol.SidecarRun, protocol.SidecarKeep, protocol.Del},
	{protocol.SidecarTake, protocol.SidecarTake, protocol.SidecarGet, protocol.SidecarDel, protocol.SidecarKeep, protocol.GetSet, protocol.SetNX, protocol.BridgeTake, protocol.BridgeDrop},
	{protocol.SidecarTake, protocol.SidecarTake, protocol.GetSet},
	{protocol.SidecarTake, protocol.SidecarTake, protocol.SidecarDel, protocol.Queue, protocol.Queue, protocol.QueueRelease, protocol.QueueRelease},
	{protocol.SidecarTake, protocol.SidecarRun, protocol.SidecarRun, protocol.SidecarRun, protocol.SidecarDel, protocol.SidecarGet, protocol.SidecarKeep, protocol.BridgeTake, protocol.Del},
	{protocol.SidecarTake, protocol.SidecarTake, protocol.SidecarRun, protocol.SidecarRun, protocol.SidecarGet, protocol.SidecarDel},
	{protocol.SetNX, protocol.GetSet, protocol.CompareSet, protocol.Watch, protocol.Commit, protocol.Del, protocol.Unwatch},
	{protocol.RedissonTake, protocol.SetNX, protocol.Queue, protocol.Take, protocol.Extend, protocol.CompareDel, protocol.CompareSet, protocol.GetSet, protocol.QueueRelease, protocol.Del},
}

// legacyValue gives the commands of the old scheme, in half of the cases, expiries of a dialect,
// long past or far ahead and some malformed; and all commands their dialect's unit and layout, a bound
// and a grace.
func legacyValue(g *rand.Rand, d *protocol.Dialect, c *protocol.Command) {
	c.Unit, c.Layout = d.Unit, d.Layout
	c.Guard = c.Key + ":g"
	if (c.Op == protocol.SetNX || c.Op == protocol.GetSet || c.Op == protocol.Commit) && g.IntN(4) != 0 {
		c.Guard = "" // of an unmodified client, which knows none
	}
	if g.IntN(2) == 0 { // the two courtesies towards clients that only poll
		c.Yield, c.Gap = c.Key+":y", time.Duration(1+g.IntN(2))*20000*time.Second
		c.Held, c.Behind = []time.Duration{0, 500 * time.Second, 15000 * time.Second}[g.IntN(3)], g.IntN(3)
		c.Breath = []time.Duration{0, 3000 * time.Second}[g.IntN(2)]
	}
	if g.IntN(3) == 0 {
		c.Share = 1000 * time.Second
	}
	if (c.Op == protocol.BridgeTake || c.Op == protocol.BridgeDrop) && g.IntN(2) == 0 {
		entry := func(token string) string {
			until := []protocol.Instant{0, protocol.InstantOf(time.Now().Add(-time.Hour)), protocol.InstantOf(time.Now().Add(24 * time.Hour))}[g.IntN(3)]
			return protocol.Entry{Claim: c.Claim, Until: until / 1e10 * 1e10, Guarded: true, Channel: c.Channel, Token: token}.String()
		}
		if g.IntN(3) > 0 {
			c.Entry = entry(c.Value)
		}
		if c.Entry != "" && g.IntN(3) == 0 {
			c.Stood = entry(c.Value)
		}
		c.Hand = g.IntN(3) > 0
	} else if c.Op == protocol.BridgeTake || c.Op == protocol.BridgeDrop {
		c.Queue = ""
	}
	c.Grace = []time.Duration{-1, 0, 1000 * time.Second}[g.IntN(3)]
	switch g.IntN(12) {
	case 0:
		c.NotAfter = protocol.InstantOf(time.Now().Add(-time.Hour))
	case 1, 2:
		c.NotAfter = protocol.InstantOf(time.Now().Add(24 * time.Hour))
	}
	if (c.Op == protocol.GetSet || c.Op == protocol.SetNX && g.IntN(2) == 0) && g.IntN(2) == 0 { // ... and their states
		c.Key, c.Value = c.Key+":y", gaps(g)
		if g.IntN(3) == 0 {
			c.Key, c.Value = protocol.ShareKey(strings.TrimSuffix(c.Key, ":y")), "1500000000000"
		}
		c.NotAfter = 0
		return
	}
	old := c.Op == protocol.SetNX || c.Op == protocol.GetSet || c.Op == protocol.Commit || c.Op == protocol.CompareSet
	if !old || g.IntN(2) == 0 {
		return
	}
	start := protocol.Instant(2_000_000_000 * int64(time.Second))
	if g.IntN(3) > 0 {
		start = protocol.Instant(1_500_000_000 * int64(time.Second))
	}
	c.Value, _ = d.Expiry(start, time.Duration(g.IntN(2))*time.Hour, []string{"0f0e0d0c-0b0a-4908-8706-050403020100", "12-main", "odd"}[g.IntN(3)])
	if g.IntN(10) == 0 {
		at := g.IntN(len(c.Value))
		c.Value = c.Value[:at] + string("0123456789-:.\" +e"[g.IntN(17)]) + c.Value[at:]
	} else if d.Forever != "" && g.IntN(3) > 0 { // a loser that has no lease
		c.Value = d.Forever
	}
}

// sidecarCall fills in what a sidecar's command carries: of two sidecars, one of which hears what it is told.
func sidecarCall(g *rand.Rand, d *protocol.Dialect, c *protocol.Command) {
	hours := func(of ...int) time.Duration { return time.Duration(of[g.IntN(len(of))]) * time.Hour }
	now := protocol.InstantOf(time.Now())
	s := protocol.Sidecar{Name: []string{"s1", "s1", "s2"}[g.IntN(3)], Dialect: d, Far: "7000000000000000000"}
	text, _ := d.Expiry(now.Add(hours(-9, 0, 0)), hours(1, 1, 2), []string{"0f0e0d0c-0b0a-4908-8706-050403020100", "12-main"}[g.IntN(2)])
	if g.IntN(4) == 0 {
		text = "text of its own"
	}
	call := &protocol.SidecarCall{
		Name: s.Name, Form: []protocol.Form{protocol.FormSetNX, protocol.FormSet, protocol.FormTakes, protocol.FormLoses, protocol.FormWait, protocol.FormTimed}[g.IntN(6)],
		Text: text, Far: s.Far, Now: now.Add(hours(-1, 0, 3)), Until: now.Add(hours(1, 2)), Free: g.IntN(6) == 0, Settle: hours(0, 0, 9),
		Unit: d.Unit, Layout: d.Layout,
	}
	if other := protocol.Dialects()[g.IntN(len(protocol.Dialects()))]; g.IntN(3) == 0 {
		call.Unit, call.Layout = other.Unit, other.Layout
	}
	if g.IntN(4) == 0 {
		call.Until = 0
	}
	switch c.Op {
	case protocol.SidecarTake:
		if c.TTL = hours(0, 4, 4, 4); call.Form == protocol.FormTakes || call.Form == protocol.FormLoses {
			c.TTL = hours(4) // a lease that is over would leave the lock for a millisecond
		}
	case protocol.SidecarRun:
		ops := []protocol.Op{protocol.SetToken, protocol.SetToken, protocol.SetNX, protocol.Get, protocol.GetSet, protocol.Del, protocol.CompareDel, protocol.CompareSet}
		call.Runs = &protocol.Command{Op: ops[g.IntN(len(ops))], Key: c.Key, Value: text, Old: text, TTL: hours(5)}
		if g.IntN(3) == 0 {
			call.Runs.Value = c.Value
		}
		if g.IntN(3) == 0 {
			call.Runs.Old = c.Value
		}
	}
	c.Record, c.Sidecar, c.Claim, c.Breath = c.Key+":r", call, hours(3), hours(0, 1)
	if g.IntN(2) == 0 {
		c.Queue = ""
	}
}

// gaps is a state of bridge_yield.lua, mostly a sound one: of long ago, so that the seconds that a run takes decide nothing.
func gaps(g *rand.Rand) string {
	pick := func(of ...int64) int64 { return of[g.IntN(len(of))] }
	then := time.Now().UnixMilli() - pick(1_000_000, 15_000_000, 30_000_000, 1_000_000_000)/10*10
	text := fmt.Sprintf("%d %d %d %d %d %d %d %d %d %d %d", g.IntN(3), then, pick(-5_300_000, 0, 9_300_000, 31_300_000), pick(-100, 0, 50, 250), pick(0, 100, 400),
		pick(-2, -1, 0, 1, 2, 1_000_000), then-pick(0, 10_000_000), pick(0, then, then+2_000_000_000), pick(20_000_000, 320_000_000), pick(-1, 0, 1, 2), pick(0, then, then+2_000_000_000))
	switch g.IntN(12) {
	case 0:
		return text + " 1"
	case 1:
		return "x" + text
	case 2:
		return strings.Replace(text, strconv.FormatInt(then, 10), "9500000000000", 1) // of the future
	}
	return text
}
