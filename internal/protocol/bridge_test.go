package protocol

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func code(n int64) Reply { return Reply{Kind: Integer, Int: n} }

func TestBridgeAcquireCountsTheTTLFromBeforeTheCommand(t *testing.T) {
	a := &BridgeAcquire{Dialect: JedisMS, Settle: time.Millisecond, TTL: time.Minute}
	a.Next(100, Reply{})
	a.Next(300, Reply{Kind: Silence})
	a.Next(400, code(TakeMine))
	assert.False(t, a.Deadline() != Instant(300).Add(time.Minute) || !a.Holds(), "until %d, holds %v", a.Deadline(), a.Holds())
	a.Next(500, Reply{Kind: Woke})
	a.Next(600, code(SettleDone))
	assert.True(t, a.Deadline() == Instant(500).Add(time.Minute), "until %d after settling at 500", a.Deadline())
}

// TestAClaimIsInWholeMilliseconds: the server counts a claim so. A third of a TTL of 2 s is 666.67 ms, and the server forgets a grant
// after 666 ms: nobody may rely on it for longer.
func TestAClaimIsInWholeMilliseconds(t *testing.T) {
	const claim, on = 2 * time.Second / 3, 666 * time.Millisecond
	b := &BridgeAcquire{Dialect: JedisMS, Value: "v", TTL: 2 * time.Second, Claim: claim, Queue: "q", Channel: "c", Patience: time.Hour}
	b.Next(100, Reply{})
	b.Next(200, Reply{Kind: Integer, Int: TakeHeld, Int2: 1, Int3: 5000, Int4: 7})
	m := &ModernQueue{Key: "k", Queue: "q", Token: "t", Channel: "c", TTL: 2 * time.Second, Claim: claim, MaxSleep: time.Hour}
	m.Next(100, Reply{})
	m.Next(200, Reply{Kind: Integer, Int: -1, Int2: 5000, Int3: 7})
	for _, w := range []interface {
		Machine
		Deadline() Instant
	}{b, m} {
		if step := w.Next(300, Reply{Kind: Granted, Int2: 7}); step.Verdict != Acquired || w.Deadline() != Instant(100).Add(on) {
			t.Errorf("%T: %+v until %v", w, step, w.Deadline())
		}
	}
	if entry, ok := ParseEntry((Entry{Claim: claim, Channel: "c", Token: "t"}).String()); !ok || entry.Claim != on {
		t.Errorf("%+v, %v", entry, ok)
	}
}

// TestBridgeAcquireReliesOnAGrant that is for its present place and young enough. It relies on it until the claim ends,
// counted from before its last question. It asks about every other grant.
func TestBridgeAcquireReliesOnAGrant(t *testing.T) {
	waiting := func(fence string) *BridgeAcquire {
		a := &BridgeAcquire{Dialect: JedisMS, Value: "v", TTL: time.Minute, Claim: time.Second, Settle: time.Second, Grace: time.Second,
			Queue: "q", Channel: "c", Patience: time.Hour, Fence: fence}
		a.Next(100, Reply{})
		a.Next(200, Reply{Kind: Integer, Int: TakeHeld, Int2: 1, Int3: 5000, Int4: 7})
		return a
	}
	granted := Reply{Kind: Granted, Int: 3, Int2: 7}
	a := waiting("f")
	if step := a.Next(300, granted); step.Verdict != Acquired || !a.Handed() || a.Deadline() != Instant(100).Add(time.Second) || a.FenceToken() != 3 {
		t.Errorf("%+v until %d with %d", step, a.Deadline(), a.FenceToken())
	}
	if entry, _ := a.Entries(); entry != "" || !a.Holds() {
		t.Errorf("the entry %q, holds %v", entry, a.Holds())
	}
	for name, c := range map[string]struct {
		fence string
		at    Instant
		reply Reply
	}{
		"of another place": {"", 300, Reply{Kind: Granted, Int2: 6}},
		"too late":         {"", Instant(100).Add(time.Second / 2), granted},
		"without a number": {"f", 300, Reply{Kind: Granted, Int2: 7}},
		"no grant":         {"", 300, Reply{Kind: Woke}},
	} {
		if step := waiting(c.fence).Next(c.at, c.reply); step.Kind != Send || step.Command.Op != BridgeTake {
			t.Errorf("%s: %+v", name, step)
		}
	}
}

// TestBridgeAcquireSettlesWhatMayBeATakeover: a key that was given to it is not settled. There are two exceptions: an
// earlier sending without a reply may have taken it over; or the dialect takes a key that has gone for an expired one.
func TestBridgeAcquireSettlesWhatMayBeATakeover(t *testing.T) {
	for name, c := range map[string]struct {
		dialect *Dialect
		silence bool
		settles bool
	}{"given": {JedisMS, false, false}, "in doubt": {JedisMS, true, true}, "the dialect": {JedisUUID, false, true}} {
		a := &BridgeAcquire{Dialect: c.dialect, Value: "v", TTL: time.Minute, Settle: time.Second, Grace: time.Second, Queue: "q", Channel: "c", Patience: time.Hour}
		a.Next(100, Reply{})
		if c.silence {
			a.Next(150, Reply{Kind: Silence})
		}
		a.Next(200, Reply{Kind: Integer, Int: TakeHeld, Int3: 10, Int4: 7})
		a.Next(300, Reply{Kind: Woke})
		if step := a.Next(400, code(TakeMine)); (step.Kind == Sleep) != c.settles {
			t.Errorf("%s: %+v", name, step)
		}
	}
}

// TestBridgeValuesAreLiveToEveryReader: a legacy client whose clock is centuries off still waits.
func TestBridgeValuesAreLiveToEveryReader(t *testing.T) {
	for _, d := range Dialects() {
		for _, n := range []int64{BridgeLow, 6123456789012345678, BridgeHigh - 1} {
			value := d.BridgeValue(n, map[Layout]string{
				UUIDColonNumber: "0f0e0d0c-0b0a-4908-8706-050403020100", NumberDashOwner: "0-0",
			}[d.Layout])
			for _, year := range []int{1990, 2026, 2100} {
				now := InstantOf(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
				assert.Equal(t, Live, d.JudgeAsOldCode(value, now, "another"), "%s in %d reads %q as", d.Name, year, value)
			}
			if back, ok := d.BridgeNumber(value); !ok || back != n {
				t.Errorf("%s: BridgeNumber(%q) = %d, %v", d.Name, value, back, ok)
			}
			if ends, ok := d.ServerExpiry(value, InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))); ok && d.Unit != Nanoseconds {
				t.Errorf("%s: the server takes %q for an expiry at %v", d.Name, value, ends.Time())
			}
		}
		if _, ok := d.BridgeNumber(fmt.Sprint(BridgeLow - 1)); ok {
			t.Errorf("%s: a number below the range counts as a bridge value", d.Name)
		}
	}
}
