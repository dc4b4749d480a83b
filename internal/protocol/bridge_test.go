package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// playBridge feeds replies to a machine and returns what it did, one word a step: an op, a sleep or the
// verdict at the end.
func playBridge(m Machine, replies ...Reply) string {
	names := map[Op]string{BridgeTake: "take", BridgeSettle: "settle", BridgeExtend: "extend", BridgeDrop: "drop", CompareDel: "clear"}
	verdicts := map[Verdict]string{
		Acquired: "ACQUIRED", Busy: "BUSY", Foreign: "FOREIGN", Ghost: "GHOST", Failed: "FAILED", Unsure: "UNSURE",
		Renewed: "RENEWED", Repaired: "REPAIRED", Displaced: "DISPLACED", Lost: "LOST", Released: "RELEASED", NotOurs: "KEPT",
	}
	var did []string
	reply := Reply{}
	for i := 0; ; i++ {
		step := m.Next(Instant(i)*Instant(time.Second), reply)
		switch step.Kind {
		case Done:
			return strings.Join(append(did, verdicts[step.Verdict]), " ")
		case Sleep:
			did = append(did, step.Sleep.String())
			reply = Reply{Kind: Woke}
			continue
		}
		did = append(did, names[step.Command.Op])
		if len(replies) == 0 {
			return strings.Join(did, " ")
		}
		reply, replies = replies[0], replies[1:]
	}
}

func code(n int64) Reply { return Reply{Kind: Integer, Int: n} }
func wait(n int64, d time.Duration) Reply {
	return Reply{Kind: Integer, Int: n, Int3: d.Milliseconds()}
}

func TestBridgeAcquireSteps(t *testing.T) {
	silence, fault := Reply{Kind: Silence}, Reply{Kind: Fault, Text: "READONLY"}
	cases := []struct {
		name    string
		dialect *Dialect
		change  func(*BridgeAcquire)
		replies []Reply
		want    string
	}{
		{"free", JedisMS, nil, []Reply{code(TakeFree)}, "take ACQUIRED"},
		{"free, in a dialect whose losers come back as winners", JedisUUID, nil, []Reply{code(TakeFree), code(SettleDone)}, "take 200ms settle ACQUIRED"},
		{"taken over", JedisMS, nil, []Reply{code(TakeOver), code(SettleDone)}, "take 200ms settle ACQUIRED"},
		{"held", JedisMS, nil, []Reply{wait(TakeHeld, time.Hour)}, "take BUSY"},
		{"held, with patience", JedisMS, func(a *BridgeAcquire) { a.Patience = 1500 * time.Millisecond },
			[]Reply{wait(TakeHeld, time.Hour), wait(TakeHeld, 50*time.Millisecond), code(TakeFree)}, "take 1s take 50ms take ACQUIRED"},
		{"foreign", JedisMS, nil, []Reply{wait(TakeForeign, -1)}, "take FOREIGN"},
		{"a ghost", JedisMS, func(a *BridgeAcquire) { a.Alone = true }, []Reply{wait(TakeRefused, -1)}, "take GHOST"},
		{"clobbered: withdraw", JedisMS, nil, []Reply{code(TakeOver), wait(SettleLeft, time.Second)}, "take 200ms settle BUSY"},
		{"deleted while settling", JedisMS, nil, []Reply{code(TakeOver), code(SettleAgain), code(SettleDone)}, "take 200ms settle 200ms settle ACQUIRED"},
		{"the guard lost while settling", JedisMS, nil, []Reply{code(TakeOver), code(SettleLost)}, "take 200ms settle BUSY"},
		{"a reply lost", JedisMS, nil, []Reply{silence, code(TakeFree)}, "take take ACQUIRED"},
		{"a reply lost, the command had run", JedisMS, nil, []Reply{silence, code(TakeMine), code(SettleDone)}, "take take 200ms settle ACQUIRED"},
		{"two replies lost", JedisMS, nil, []Reply{silence, silence, code(DropDone)}, "take take drop FAILED"},
		{"nothing answers", JedisMS, nil, []Reply{silence, silence, silence, silence}, "take take drop drop UNSURE"},
		{"a reply lost while settling", JedisMS, nil, []Reply{code(TakeOver), silence, code(SettleDone)}, "take 200ms settle settle ACQUIRED"},
		{"refused", JedisMS, nil, []Reply{fault}, "take FAILED"},
		{"refused after a lost reply", JedisMS, nil, []Reply{silence, fault, code(DropNothing)}, "take take drop FAILED"},
		{"refused while settling", JedisMS, nil, []Reply{code(TakeOver), fault, code(DropDone)}, "take 200ms settle drop FAILED"},
		{"no old client is left", JedisUUID, func(a *BridgeAcquire) { a.Alone = true }, []Reply{code(TakeFree)}, "take ACQUIRED"},
	}
	for _, c := range cases {
		a := &BridgeAcquire{Dialect: c.dialect, Key: "k", Guard: "g", Value: "v", TTL: time.Minute, Settle: 200 * time.Millisecond, Poll: time.Second}
		if c.change != nil {
			c.change(a)
		}
		assert.Equal(t, c.want, playBridge(a, c.replies...), "%s", c.name)
	}
}

func TestBridgeAcquireStopsSettling(t *testing.T) {
	a := &BridgeAcquire{Dialect: JedisMS, Settle: time.Millisecond}
	replies := []Reply{code(TakeOver)}
	for range maxSettles {
		replies = append(replies, code(SettleAgain))
	}
	want := "take" + strings.Repeat(" 1ms settle", maxSettles) + " drop BUSY"
	assert.Equal(t, want, playBridge(a, append(replies, code(DropDone))...))
}

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

func TestBridgeRenewAndReleaseSteps(t *testing.T) {
	silence, fault := Reply{Kind: Silence}, Reply{Kind: Fault}
	for _, c := range []struct {
		replies []Reply
		renew   string
		release string
	}{
		{[]Reply{code(1)}, "extend RENEWED", "drop RELEASED"},
		{[]Reply{code(2)}, "extend REPAIRED", "drop RELEASED"},
		{[]Reply{code(-1)}, "extend DISPLACED", "drop DISPLACED"},
		{[]Reply{code(0)}, "extend LOST", "drop KEPT"},
		{[]Reply{silence, code(1)}, "extend extend RENEWED", "drop drop RELEASED"},
		{[]Reply{silence, code(0)}, "extend extend LOST", "drop drop RELEASED"},
		{[]Reply{silence, silence}, "extend extend UNSURE", "drop drop UNSURE"},
		{[]Reply{fault, fault}, "extend FAILED", "drop drop FAILED"},
		{[]Reply{fault, code(1)}, "extend FAILED", "drop drop RELEASED"},
		{[]Reply{silence, fault, fault}, "extend extend UNSURE", "drop drop drop UNSURE"},
	} {
		assert.Equal(t, c.renew, playBridge(&BridgeRenew{}, c.replies...), "renew")
		assert.Equal(t, c.release, playBridge(&BridgeRelease{}, c.replies...), "release")
	}
}

// TestBridgeReleaseClearsLeftovers: only the value that never expires goes, and whatever becomes of that the holder is told.
func TestBridgeReleaseClearsLeftovers(t *testing.T) {
	theirs := func(value string) Reply { return Reply{Int: DropTheirs, Text: value} }
	const forever = "2147483649.0"
	for _, c := range []struct {
		dialect *Dialect
		replies []Reply
		want    string
	}{
		{RedisPyFloat, []Reply{theirs(forever), code(1)}, "drop clear DISPLACED"},
		{RedisPyFloat, []Reply{theirs(forever), code(0)}, "drop clear DISPLACED"},
		{RedisPyFloat, []Reply{theirs(forever), {Kind: Silence}}, "drop clear DISPLACED"},
		{RedisPyFloat, []Reply{theirs(forever), {Kind: Fault}}, "drop clear DISPLACED"},
		{RedisPyFloat, []Reply{theirs("1795336218.5")}, "drop DISPLACED"},
		{RedisObjects, []Reply{theirs("1")}, "drop DISPLACED"},
		{JedisMS, []Reply{theirs("")}, "drop DISPLACED"},
	} {
		assert.Equal(t, c.want, playBridge(&BridgeRelease{Leftover: c.dialect.Leftover()}, c.replies...), "%s %v", c.dialect.Name, c.replies)
	}
}

// TestADisplacementIsToldAgain: a holder whose first reply was lost hears of it from the second, and its guard goes after that.
func TestADisplacementIsToldAgain(t *testing.T) {
	theirs, silence := Reply{Int: DropTheirs, Text: "2147483649.0"}, Reply{Kind: Silence}
	for _, c := range []struct {
		leftover string
		replies  []Reply
		want     string
	}{
		{"", []Reply{theirs, theirs}, "drop drop DISPLACED"},
		{"", []Reply{silence, theirs, theirs}, "drop drop drop DISPLACED"},
		{"", []Reply{theirs, code(DropNothing)}, "drop drop DISPLACED"},
		{"", []Reply{theirs, silence}, "drop drop DISPLACED"},
		{theirs.Text, []Reply{theirs, silence, code(1)}, "drop drop clear DISPLACED"},
		{"", []Reply{{Kind: Fault}, theirs, theirs}, "drop drop drop DISPLACED"}, // from the second one on the lock's own keys only
		{"", []Reply{{Kind: Fault}, silence, theirs, theirs}, "drop drop drop drop DISPLACED"},
	} {
		r := &BridgeRelease{Hand: true, Leftover: c.leftover}
		if got := playBridge(r, c.replies...); got != c.want || r.Seen() != theirs.Text {
			t.Errorf("%v: got %s, seen %q, want %s", c.replies, got, r.Seen(), c.want)
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
