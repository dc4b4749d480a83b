package protocol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// play runs a machine against scripted replies and returns the steps, one a line.
func play(m Machine, replies ...Reply) string {
	var b strings.Builder
	reply, now := Reply{}, Instant(1_000_000*time.Second)
	for {
		step := m.Next(now, reply)
		switch step.Kind {
		case Done:
			fmt.Fprintf(&b, "= %s", verdictNames[step.Verdict])
			return b.String()
		case Sleep:
			fmt.Fprintf(&b, "sleep %v\n", step.Sleep)
			now = now.Add(step.Sleep)
			reply = Reply{Kind: Woke}
			continue
		}
		c := step.Command
		fmt.Fprintf(&b, "%s %s\n", opNames[c.Op], strings.Join(strings.Fields(c.Key+" "+c.Old+" "+c.Value), " "))
		if len(replies) == 0 {
			return b.String() + "(no reply scripted)"
		}
		reply, replies = replies[0], replies[1:]
		now++ // time passes with each round trip, though less than a unit of any dialect but ns
	}
}

var (
	opNames = map[Op]string{
		SetNX: "SETNX", Get: "GET", GetSet: "GETSET", Del: "DEL", Watch: "WATCH", Unwatch: "UNWATCH",
		Commit: "MULTI/SET/EXEC", CompareDel: "compare_del", CompareSet: "compare_set",
	}
	verdictNames = map[Verdict]string{
		Acquired: "acquired", Busy: "busy", Foreign: "foreign", Threw: "threw", Released: "released",
		NotOurs: "kept", Renewed: "renewed", Lost: "lost", Failed: "failed", Unsure: "unsure",
	}
	zero, one = Reply{Kind: Integer}, Reply{Kind: Integer, Int: 1}
	absent    = Reply{Kind: Nil}
	silence   = Reply{Kind: Silence}
	over      = Reply{Kind: Silence, Over: true}
)

func text(s string) Reply  { return Reply{Kind: Text, Text: s} }
func fault(s string) Reply { return Reply{Kind: Fault, Text: s} }

func script(lines ...string) string { return strings.Join(lines, "\n") }

// The instants of play in dialect A: now is 1000000000 ms, so a lease of 10 s writes 1000010001.
const written, past, past2, future = "1000010001", "999999999", "999999998", "1000000001"

func acquire(d *Dialect, patience time.Duration) *LegacyAcquire {
	return &LegacyAcquire{Dialect: d, Key: "k", Owner: "me", Lease: 10 * time.Second, Poll: 100 * time.Millisecond, Patience: patience}
}

func TestLegacyAcquireIsTheArticle(t *testing.T) {
	for name, c := range map[string]struct {
		replies []Reply
		want    string
	}{
		"a free key": {[]Reply{one}, script("SETNX k "+written, "= acquired")},
		"a held key": {[]Reply{zero, text(future)}, script("SETNX k "+written, "GET k", "= busy")},
		"an expired key": {[]Reply{zero, text(past), text(past)},
			script("SETNX k "+written, "GET k", "GETSET k "+written, "= acquired")},
		"a lost race": {[]Reply{zero, text(past), text(future)},
			script("SETNX k "+written, "GET k", "GETSET k "+written, "= busy")},
		"a lost race against an expired value is lost": {[]Reply{zero, text(past), text(past2)},
			script("SETNX k "+written, "GET k", "GETSET k "+written, "= busy")},
		"released between SETNX and GET":  {[]Reply{zero, absent}, script("SETNX k "+written, "GET k", "= busy")},
		"released between GET and GETSET": {[]Reply{zero, text(past), absent}, script("SETNX k "+written, "GET k", "GETSET k "+written, "= acquired")},
		"a token":                         {[]Reply{zero, text("6ba7b810")}, script("SETNX k "+written, "GET k", "= foreign")},
		"a hash":                          {[]Reply{zero, fault("WRONGTYPE not a string")}, script("SETNX k "+written, "GET k", "= foreign")},
		"a read-only server":              {[]Reply{fault("READONLY replica")}, script("SETNX k "+written, "= failed")},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, play(acquire(JedisMS, 0), c.replies...)) })
	}
}

func TestPatienceIsCountedInSleeps(t *testing.T) {
	held := []Reply{zero, text("2000000000")}
	want := script("SETNX k 1000010001", "GET k", "sleep 100ms", "SETNX k 1000010101", "GET k", "sleep 100ms", "SETNX k 1000010201", "GET k", "= busy")
	replies := append(append(append([]Reply{}, held...), held...), held...)
	assert.Equal(t, want, play(acquire(JedisMS, 200*time.Millisecond), replies...),
		"timeoutMsecs 200 makes three attempts, as the old loop does")
}

func TestEveryDialectsTakeover(t *testing.T) {
	const uuid = "123e4567-e89b-42d3-a456-426614174000"
	for _, c := range []struct {
		name    string
		dialect *Dialect
		replies []Reply
		want    string
	}{
		{"B takes over an expired value", JedisUUID, []Reply{zero, text(uuid + ":5"), text(uuid + ":5")},
			script("SETNX k me:"+written, "GET k", "GETSET k me:"+written, "= acquired")},
		{"B does not take a token over in Go", JedisUUID, []Reply{zero, text("token")}, script("SETNX k me:"+written, "GET k", "= foreign")},
		{"C wins when the old value is itself expired", RedisPyFloat, []Reply{zero, text("5.0"), text("6.0")},
			script("SETNX k 1000010.0", "GET k", "GETSET k 1000010.0", "= acquired")},
		{"C loses to a live value", RedisPyFloat, []Reply{zero, text("5.0"), text("1000009.5")},
			script("SETNX k 1000010.0", "GET k", "GETSET k 1000010.0", "= busy")},
		{"C takes a vanished key by GETSET", RedisPyFloat, []Reply{zero, absent, absent},
			script("SETNX k 1000010.0", "GET k", "GETSET k 1000010.0", "= acquired")},
		{"C does not take over a text", RedisPyFloat, []Reply{zero, text("abc")}, script("SETNX k 1000010.0", "GET k", "= foreign")},
		{"D wins when the old value is expired", RedisDoc, []Reply{zero, text("1000000"), text("999999")},
			script("SETNX k 1000011", "GET k", "GETSET k 1000011", "= acquired")},
		{"E adds a second, and computes again before GETSET", RedisObjects, []Reply{zero, text("5.0"), text("7")},
			script("SETNX k 1000011.0", "GET k", "GETSET k 1000011.000000002", "= acquired")},
		{"H compares texts", SecPIDThread, []Reply{zero, text("5-1-2"), text("5-1-2")},
			script("SETNX k 1000011-me", "GET k", "GETSET k 1000011-me", "= acquired")},
		{"H loses to another text", SecPIDThread, []Reply{zero, text("5-1-2"), text("5-1-3")},
			script("SETNX k 1000011-me", "GET k", "GETSET k 1000011-me", "= busy")},
		{"K takes over by transaction, quoted", ServiceStack, []Reply{zero, text("OK"), text("5"), text("OK")},
			script("SETNX k "+written, "WATCH k", "GET k", `MULTI/SET/EXEC k "`+written+`"`, "= acquired")},
		{"K reads its quoted values", ServiceStack, []Reply{zero, text("OK"), text(`"` + future + `"`), text("OK")},
			script("SETNX k "+written, "WATCH k", "GET k", "UNWATCH ", "= busy")},
		{"K loses when the watched key changed", ServiceStack, []Reply{zero, text("OK"), text("5"), absent},
			script("SETNX k "+written, "WATCH k", "GET k", `MULTI/SET/EXEC k "`+written+`"`, "= busy")},
		{"N counts nanoseconds", UnixNano, []Reply{zero, text("5"), text("6")},
			script("SETNX k 1000010000000000", "GET k", "GETSET k 1000010000000000", "= acquired")},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, play(acquire(c.dialect, 0), c.replies...)) })
	}
}

// What the old code does and ours does not.
func TestFaithfulMachinesKeepTheOldFaults(t *testing.T) {
	faithful := func(d *Dialect) *LegacyAcquire {
		m := acquire(d, 0)
		m.Faithful = true
		return m
	}
	for _, c := range []struct {
		name    string
		dialect *Dialect
		replies []Reply
		end     string
	}{
		{"A leaves a ghost when the key vanished under GETSET", JedisMS, []Reply{zero, text(past), absent}, "= busy"},
		{"A throws on a token", JedisMS, []Reply{zero, text("token")}, "= threw"},
		{"A throws on a hash", JedisMS, []Reply{zero, fault("WRONGTYPE")}, "= threw"},
		{"B steals a token", JedisUUID, []Reply{zero, text("token"), text("token")}, "= acquired"},
		{"B takes its own uuid as expired", JedisUUID, []Reply{zero, text("me:" + future), text("me:" + future)}, "= acquired"},
		{"B leaves a ghost when the key vanished", JedisUUID, []Reply{zero, absent, absent}, "= busy"},
		{"C throws on a token, after it has overwritten it", RedisPyFloat, []Reply{zero, text("5.0"), text("token")}, "= threw"},
		{"E steals a text without a number", RedisObjects, []Reply{zero, text("token"), text("token")}, "= acquired"},
		{"H steals nothing at all", SecPIDThread, []Reply{zero, absent, absent}, "= acquired"},
		{"K holds a token for ever", ServiceStack, []Reply{zero, text("OK"), text("token"), text("OK")}, "= busy"},
		{"N fails on a vanished key", UnixNano, []Reply{zero, absent}, "= threw"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := play(faithful(c.dialect), c.replies...)
			assert.Equal(t, c.end, run[strings.LastIndex(run, "="):])
		})
	}

	old := &LegacyAcquire{Dialect: SecPIDThread, Key: "k", Owner: "me", Lease: time.Second, Poll: 5 * time.Second, Patience: 5 * time.Second, Faithful: true}
	assert.Contains(t, play(old, zero, text("2000000-1"), one), "sleep 5s\nSETNX k 1000002-me", "H writes an expiry that is past")
	ours := &LegacyAcquire{Dialect: SecPIDThread, Key: "k", Owner: "me", Lease: time.Second, Poll: 5 * time.Second, Patience: 5 * time.Second}
	assert.Contains(t, play(ours, zero, text("2000000-1"), one), "sleep 5s\nSETNX k 1000007-me")
}

func TestLegacyAcquireSettlesLostReplies(t *testing.T) {
	for _, c := range []struct {
		name    string
		dialect *Dialect
		replies []Reply
		want    string
	}{
		{"SETNX: another holds the key", JedisMS, []Reply{silence, text(future)}, script("SETNX k "+written, "GET k", "= busy")},
		{"SETNX: the key is free, so it is sent again", JedisMS, []Reply{silence, absent, one},
			script("SETNX k "+written, "GET k", "SETNX k "+written, "= acquired")},
		{"SETNX: a number that a twin may have written proves nothing", JedisMS, []Reply{silence, text(written)},
			script("SETNX k "+written, "GET k", "= unsure")},
		{"SETNX: a value of its own proves it", JedisUUID, []Reply{silence, text("me:" + written)},
			script("SETNX k me:"+written, "GET k", "= acquired")},
		{"SETNX: no answer at all", JedisMS, []Reply{silence, silence}, script("SETNX k "+written, "GET k", "= unsure")},
		{"GET leaves nothing behind", JedisMS, []Reply{zero, silence}, script("SETNX k "+written, "GET k", "= failed")},
		{"GETSET ran: what it replaced is lost", JedisUUID, []Reply{zero, text("a:5"), silence, text("me:" + written)},
			script("SETNX k me:"+written, "GET k", "= foreign")},
		{"GETSET ran", RedisPyFloat, []Reply{zero, text("5.0"), silence, text("1000010.0")},
			script("SETNX k 1000010.0", "GET k", "GETSET k 1000010.0", "GET k", "= unsure")},
		{"GETSET did not run", RedisPyFloat, []Reply{zero, text("5.0"), silence, text("5.0")},
			script("SETNX k 1000010.0", "GET k", "GETSET k 1000010.0", "GET k", "= busy")},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, play(acquire(c.dialect, 0), c.replies...)) })
	}
}

func TestLegacyRelease(t *testing.T) {
	now := Instant(1_000_000 * time.Second)
	for _, c := range []struct {
		name    string
		dialect *Dialect
		policy  Release
		value   string
		expiry  Instant
		replies []Reply
		want    string
	}{
		{"blind, whenever", JedisMS, ReleaseBlind, written, now - 1, []Reply{one}, script("DEL k", "= released")},
		{"blind, nothing there", JedisMS, ReleaseBlind, written, now - 1, []Reply{zero}, script("DEL k", "= kept")},
		{"unexpired", JedisMS, ReleaseUnexpired, written, now + 1, []Reply{one}, script("DEL k", "= released")},
		{"expired: nothing is sent", JedisMS, ReleaseUnexpired, written, now, nil, "= kept"},
		{"compared", JedisMS, ReleaseCompare, written, now - 1, []Reply{one}, script("compare_del k "+written, "= released")},
		{"C deletes its own", RedisPyFloat, ReleaseNotSmaller, "10.0", now, []Reply{text("10.0"), one}, script("GET k", "DEL k", "= released")},
		{"C deletes any later number", RedisPyFloat, ReleaseNotSmaller, "10.0", now, []Reply{text("11"), one}, script("GET k", "DEL k", "= released")},
		{"C leaves an earlier number", RedisPyFloat, ReleaseNotSmaller, "10.0", now, []Reply{text("9.9")}, script("GET k", "= kept")},
		{"H deletes its own unexpired", SecPIDThread, ReleaseMine, "9-me", now + 1e9, []Reply{text("9-me"), one}, script("GET k", "DEL k", "= released")},
		{"H leaves another's", SecPIDThread, ReleaseMine, "9-me", now + 1e9, []Reply{text("9-you")}, script("GET k", "= kept")},
		{"N never releases", UnixNano, ReleaseNever, "9", now, nil, "= kept"},
		{"a lost DEL that will not come is sent again while the value stands", JedisMS, ReleaseUnexpired, written, now + 1e9,
			[]Reply{over, text(written), one}, script("DEL k", "GET k", "DEL k", "= released")},
		{"a lost DEL that ran", JedisMS, ReleaseUnexpired, written, now + 1e9, []Reply{silence, absent}, script("DEL k", "GET k", "= released")},
		{"a lost DEL, a successor", JedisMS, ReleaseBlind, written, now + 1e9, []Reply{silence, text(future)}, script("DEL k", "GET k", "= released")},
		{"no answer", JedisMS, ReleaseBlind, written, now, []Reply{silence, silence}, script("DEL k", "GET k", "= unsure")},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &LegacyRelease{Dialect: c.dialect, Key: "k", Policy: c.policy, Value: c.value, Expiry: c.expiry}
			assert.Equal(t, c.want, play(m, c.replies...))
		})
	}
}

func TestLegacyRenew(t *testing.T) {
	const sent = "compare_set k old " + written
	for name, c := range map[string]struct {
		replies []Reply
		want    string
	}{
		"ours":                        {[]Reply{one}, script(sent, "= renewed")},
		"not ours any more":           {[]Reply{zero}, script(sent, "= lost")},
		"refused":                     {[]Reply{fault("NOPERM")}, script(sent, "= failed")},
		"no reply, it ran":            {[]Reply{silence, text(written)}, script(sent, "GET k", "= renewed")},
		"no reply, it did not run":    {[]Reply{silence, text("old")}, script(sent, "GET k", "= failed")},
		"no reply, another's value":   {[]Reply{silence, text("5")}, script(sent, "GET k", "= lost")},
		"no reply, and none to a GET": {[]Reply{silence, silence}, script(sent, "GET k", "= unsure")},
	} {
		t.Run(name, func(t *testing.T) {
			m := &LegacyRenew{Dialect: JedisMS, Key: "k", Lease: 10 * time.Second, Value: "old"}
			assert.Equal(t, c.want, play(m, c.replies...))
		})
	}
}

// TestLegacyRenewAfterAnUnknownOutcome: the key holds the old value or the pending one. Which it is is settled first.
func TestLegacyRenewAfterAnUnknownOutcome(t *testing.T) {
	const settles, sent = "compare_set k old pending", "compare_set k pending " + written
	for name, c := range map[string]struct {
		replies        []Reply
		want           string
		value, pending string // what the machine leaves behind
	}{
		"it ran":                        {[]Reply{zero, one}, script(settles, sent, "= renewed"), written, ""},
		"it did not run":                {[]Reply{one, one}, script(settles, sent, "= renewed"), written, ""},
		"taken":                         {[]Reply{zero, zero}, script(settles, sent, "= lost"), "pending", written},
		"no answer again":               {[]Reply{silence}, script(settles, "= unsure"), "old", "pending"},
		"refused":                       {[]Reply{fault("OOM")}, script(settles, "= failed"), "old", "pending"},
		"settled, then refused":         {[]Reply{zero, fault("OOM")}, script(settles, sent, "= failed"), "pending", ""},
		"settled, then no answer":       {[]Reply{one, silence, silence}, script(settles, sent, "GET k", "= unsure"), "pending", written},
		"settled, then it did not run":  {[]Reply{one, silence, text("pending")}, script(settles, sent, "GET k", "= failed"), "pending", written},
		"settled, then it ran unheard":  {[]Reply{one, silence, text(written)}, script(settles, sent, "GET k", "= renewed"), written, ""},
		"settled, then another's value": {[]Reply{one, silence, text("5")}, script(settles, sent, "GET k", "= lost"), "pending", written},
	} {
		t.Run(name, func(t *testing.T) {
			m := &LegacyRenew{Dialect: JedisMS, Key: "k", Lease: 10 * time.Second, Value: "old", ValueExpiry: 7, Pending: "pending", PendingExpiry: 8}
			assert.Equal(t, c.want, play(m, c.replies...))
			assert.Equal(t, c.value, m.Value)
			assert.Equal(t, c.pending, m.Pending)
			assert.Equal(t, map[string]Instant{"old": 7, "pending": 8, written: m.Expiry()}[m.Value], m.ValueExpiry, "each value with its own end")
		})
	}
}

// TestLegacyReleaseAfterAnUnknownRenewal: the older value is asked for first, because a renewal that arrives late finds it.
func TestLegacyReleaseAfterAnUnknownRenewal(t *testing.T) {
	const old, pending = "compare_del k old", "compare_del k pending"
	for name, c := range map[string]struct {
		policy  Release
		replies []Reply
		want    string
	}{
		"compared, it did not run":        {ReleaseCompare, []Reply{one}, script(old, "= released")},
		"compared, it ran":                {ReleaseCompare, []Reply{zero, one}, script(old, pending, "= released")},
		"compared, taken":                 {ReleaseCompare, []Reply{zero, zero}, script(old, pending, "= kept")},
		"compared, a lost DEL, it stands": {ReleaseCompare, []Reply{zero, silence, text("pending"), zero, one}, script(old, pending, "GET k", old, pending, "= released")},
		"compared, a lost DEL that ran":   {ReleaseCompare, []Reply{zero, silence, absent}, script(old, pending, "GET k", "= released")},
		"a lost DEL arrives after GET":    {ReleaseCompare, []Reply{silence, text("old"), zero, zero}, script(old, "GET k", old, pending, "= released")},
		"mine, it ran":                    {ReleaseMine, []Reply{text("pending"), one}, script("GET k", "DEL k", "= released")},
		"mine, it did not run":            {ReleaseMine, []Reply{text("old"), one}, script("GET k", "DEL k", "= released")},
		"mine, taken":                     {ReleaseMine, []Reply{text("5-you")}, script("GET k", "= kept")},
		"unexpired, a lost DEL":           {ReleaseUnexpired, []Reply{over, text("pending"), one}, script("DEL k", "GET k", "DEL k", "= released")},
		"unexpired, a DEL on its way":     {ReleaseUnexpired, []Reply{silence, text("pending")}, script("DEL k", "GET k", "= unsure")},
		"unexpired, twice no answer":      {ReleaseUnexpired, []Reply{over, text("old"), silence}, script("DEL k", "GET k", "DEL k", "= unsure")},
		"mine, a DEL on its way":          {ReleaseMine, []Reply{text("old"), silence, text("old")}, script("GET k", "DEL k", "GET k", "= unsure")},
	} {
		t.Run(name, func(t *testing.T) {
			m := &LegacyRelease{Dialect: JedisMS, Key: "k", Policy: c.policy, Value: "old", Pending: "pending", Expiry: Instant(2_000_000 * time.Second)}
			assert.Equal(t, c.want, play(m, c.replies...))
		})
	}
}

// TestLegacyReleaseAfterAnUnknownRelease: a second release must not send a DEL for a key that the first one has freed.
func TestLegacyReleaseAfterAnUnknownRelease(t *testing.T) {
	for name, c := range map[string]struct {
		policy  Release
		replies []Reply
		want    string
	}{
		"unexpired, it did not run":  {ReleaseUnexpired, []Reply{text(written), one}, script("GET k", "DEL k", "= released")},
		"unexpired, it ran":          {ReleaseUnexpired, []Reply{absent}, script("GET k", "= released")},
		"unexpired, a successor":     {ReleaseUnexpired, []Reply{text(future)}, script("GET k", "= released")},
		"unexpired, no answer again": {ReleaseUnexpired, []Reply{silence}, script("GET k", "= unsure")},
		"unexpired, refused":         {ReleaseUnexpired, []Reply{fault("LOADING")}, script("GET k", "= unsure")},
		"blind, a successor":         {ReleaseBlind, []Reply{text(future)}, script("GET k", "= released")},
		"compared, which asks alone": {ReleaseCompare, []Reply{zero}, script("compare_del k "+written, "= kept")},
	} {
		t.Run(name, func(t *testing.T) {
			m := &LegacyRelease{Dialect: JedisMS, Key: "k", Policy: c.policy, Value: written, Expiry: Instant(2_000_000 * time.Second), Again: true}
			assert.Equal(t, c.want, play(m, c.replies...))
		})
	}
	// The DEL of the first release may come yet: a second one would let a successor in before it.
	for reply, want := range map[Reply]string{text(written): script("GET k", "= unsure"), absent: script("GET k", "= released"), text(future): script("GET k", "= released")} {
		m := &LegacyRelease{Dialect: JedisMS, Key: "k", Policy: ReleaseBlind, Value: written, Expiry: Instant(2_000_000 * time.Second), Again: true, OnItsWay: true}
		assert.Equal(t, want, play(m, reply))
	}
}

// A machine is a value: a copy runs on by itself, which the explorer relies on.
func TestMachinesForkByCopy(t *testing.T) {
	m := acquire(JedisMS, 0)
	m.Next(Instant(1_000_000*time.Second), Reply{})
	fork := *m
	assert.Equal(t, Acquired, m.Next(0, one).Verdict)
	assert.Equal(t, Get, fork.Next(0, zero).Command.Op)
}
