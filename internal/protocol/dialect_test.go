package protocol

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noon is 2026-11-21 12:00:00.123456789 UTC.
const noon = Instant(1795262400123456789)

func TestExpiryIsWrittenAsTheDialectDoes(t *testing.T) {
	const uuid = "123e4567-e89b-42d3-a456-426614174000"
	for _, c := range []struct {
		dialect *Dialect
		lease   time.Duration
		owner   string
		value   string
		expiry  Instant
	}{
		{JedisMS, 5 * time.Minute, "", "1795262700124", 1795262700124e6},
		{JedisUUID, 2 * time.Second, uuid, uuid + ":1795262402124", 1795262402124e6},
		{RedisPyFloat, 2 * time.Second, "", "1795262402.1234567", 1795262402123456716},
		{RedisDoc, 10 * time.Second, "", "1795262411", 1795262411e9},
		{RedisObjects, 2500 * time.Millisecond, "", "1795262403.6234567", 1795262403623456716},
		{SecPIDThread, 10 * time.Second, "42-7", "1795262411-42-7", 1795262411e9},
		{ServiceStack, time.Second, "", "1795262401124", 1795262401124e6},
		{UnixNano, time.Second, "", "1795262401123456789", 1795262401123456789},
		{JBoot, time.Second, "", "\xf6\x82\x64\x4a\xfa\xfd\xa1\x01\x00\x00", 1795262401124e6},
	} {
		t.Run(c.dialect.Name, func(t *testing.T) {
			value, expiry := c.dialect.Expiry(noon, c.lease, c.owner)
			assert.Equal(t, c.value, value)
			assert.InDelta(t, float64(c.expiry), float64(expiry), 1000, "within a microsecond")
			at, ok := c.dialect.ExpiresAt(value)
			require.True(t, ok, "reads what it writes")
			assert.Equal(t, expiry, at)
			assert.Equal(t, Live, c.dialect.Judge(value, noon, "another"))
			assert.Equal(t, Expired, c.dialect.Judge(value, expiry.Add(2*time.Second), "another"))
		})
	}
}

func TestExpiredIsStrictlyLessWhereTheOldCodeSaysSo(t *testing.T) {
	at := func(ms int64) Instant { return Instant(ms * 1e6) }
	assert.Equal(t, Live, JedisMS.Judge("1000", at(1000), ""))
	assert.Equal(t, Live, JedisMS.Judge("1000", at(1000)+999_999, ""), "the rest of the millisecond")
	assert.Equal(t, Expired, JedisMS.Judge("1000", at(1001), ""))
	assert.Equal(t, Expired, ServiceStack.Judge("1000", at(1000), ""))
	assert.Equal(t, Expired, RedisDoc.Judge("1", at(1000), ""))
	assert.Equal(t, Live, SecPIDThread.Judge("1-2-3", at(1999), ""))
	assert.Equal(t, Expired, SecPIDThread.Judge("1-2-3", at(2000), ""))
	assert.Equal(t, Live, UnixNano.Judge("0", at(1000), ""), "machinery never takes 0 over")
}

func TestForeignValues(t *testing.T) {
	const token = "550e8400-e29b-41d4-a716-446655440000"
	const bridge = "7301234567890123456"
	for _, c := range []struct {
		dialect *Dialect
		value   string
		ours    Reading // what the Go client makes of it
		old     Reading // what the old code makes of it; Unreadable: it throws
	}{
		{JedisMS, token, Unreadable, Unreadable},
		{JedisMS, bridge, Live, Live},
		{JedisMS, "1795262400", Expired, Expired}, // seconds: stolen at once
		{JedisMS, token + ":1795262400000", Unreadable, Unreadable},
		{JedisMS, "", Unreadable, Unreadable},
		{JedisUUID, bridge, Unreadable, Expired}, // a plain number: STOLEN
		{JedisUUID, token + ":" + bridge, Live, Live},
		{JedisUUID, token, Unreadable, Expired},
		{RedisPyFloat, token, Unreadable, Unreadable},
		{RedisPyFloat, bridge, Live, Live},
		{RedisPyFloat, "1795262400000", Live, Live}, // milliseconds: never expires
		{RedisPyFloat, "", Expired, Expired},
		{RedisObjects, token, Unreadable, Live},            // 550e8400 reads as infinity
		{RedisObjects, "abc" + token, Unreadable, Expired}, // no number at all reads as 0
		{RedisObjects, bridge, Live, Live},
		{SecPIDThread, token, Unreadable, Expired}, // 550
		{SecPIDThread, bridge, Live, Live},
		{ServiceStack, token, Unreadable, Live},
		{ServiceStack, `"` + bridge + `"`, Live, Live},
		{JBoot, token, Unreadable, Live},
		{JBoot, "1795262400000", Unreadable, Live}, // milliseconds as text: held for ever
		{JBoot, bridge, Unreadable, Live},
		{JBoot, "\xf6\x05", Expired, Expired}, // FST shortens small numbers
		{JBoot, "\xf6\x80\xff\x7f", Expired, Expired},
		{JBoot, "\xf6\x81\xff\xff\xff\x7f", Expired, Expired},
		{JBoot, "\xf6\x82\xec\x46", Unreadable, Live},
		{JBoot, "\xf6", Unreadable, Live},
		{UnixNano, token, Unreadable, Unreadable},
		{UnixNano, bridge, Live, Live},
		{UnixNano, "1795262400000", Expired, Expired}, // milliseconds: stolen
	} {
		assert.Equal(t, c.ours, c.dialect.Judge(c.value, noon, "me"), "%s reads %q", c.dialect.Name, c.value)
		assert.Equal(t, c.old, c.dialect.JudgeAsOldCode(c.value, noon, "me"), "old %s reads %q", c.dialect.Name, c.value)
	}
}

func TestNumbersAsTheLanguagesReadThem(t *testing.T) {
	const no = math.MinInt64 + 12345 // marks "does not parse"
	for _, c := range []struct {
		syntax Syntax
		text   string
		want   float64
	}{
		{JavaLong, "+5", 5}, {JavaLong, "-5", -5}, {JavaLong, "-0", 0}, {JavaLong, "007", 7},
		{JavaLong, "", no}, {JavaLong, "-", no}, {JavaLong, "+-5", no}, {JavaLong, " 5", no}, {JavaLong, "5\n", no},
		{JavaLong, "1_000", no}, {JavaLong, "5.0", no}, {JavaLong, "0x5", no}, {JavaLong, "٣٤", 34}, {JavaLong, "９", 9},
		{JavaLong, "9223372036854775807", math.MaxInt64}, {JavaLong, "9223372036854775808", no},
		{JavaLong, "-9223372036854775808", math.MinInt64}, {JavaLong, "-9223372036854775809", no},
		{JavaLong, "99999999999999999999999999", no}, {JavaLong, "5\x00", no}, {JavaLong, "\xff", no},
		{PythonFloat, " 5 ", 5}, {PythonFloat, "\v5\f", 5}, {PythonFloat, "5.", 5}, {PythonFloat, ".5", 0.5},
		{PythonFloat, "1e3", 1000}, {PythonFloat, "1e400", math.Inf(1)}, {PythonFloat, "-inf", math.Inf(-1)},
		{PythonFloat, "INFINITY", math.Inf(1)}, {PythonFloat, "1_000.5", 1000.5}, {PythonFloat, "1__0", no},
		{PythonFloat, "_1", no}, {PythonFloat, "1_", no}, {PythonFloat, "1_.5", no}, {PythonFloat, "0x10", no},
		{PythonFloat, "1e", no}, {PythonFloat, ".", no}, {PythonFloat, "", no}, {PythonFloat, "5\x00", no},
		{PythonFloat, "5,0", no}, {PythonFloat, "5f", no}, {PythonFloat, "infinit", no}, {PythonFloat, "1e5_0", 1e50},
		{RubyFloat, " 5", 5}, {RubyFloat, "5.", no}, {RubyFloat, ".5", 0.5}, {RubyFloat, "5abc", no}, {RubyFloat, "", no},
		{RubyInteger, "1_000", 1000}, {RubyInteger, "12ab", no}, {RubyInteger, "", no},
		{DotNetLong, " 5\t", 5}, {DotNetLong, "+5", 5}, {DotNetLong, "5\x00\x00", 5}, {DotNetLong, "5.0", no}, {DotNetLong, "", no},
		{PlainInteger, "+5", 5}, {PlainInteger, " 5", no}, {PlainInteger, "1_0", no},
	} {
		n, ok := c.syntax.parse(c.text)
		got := float64(n.Whole)
		if n.Float {
			got = n.Real
		}
		if !ok {
			got = no
		}
		assert.Equal(t, c.want, got, "syntax %d reads %q", c.syntax, c.text)
	}
	nan, ok := PythonFloat.parse("+NaN")
	assert.True(t, ok && math.IsNaN(nan.Real))
	assert.Equal(t, Live, RedisPyFloat.Judge("nan", noon, ""), "not a number is not smaller than anything")
	assert.Equal(t, 550.0, RubyFloat.prefix("550e", FloatSeconds).Real)
	assert.Equal(t, 1.0, RubyFloat.prefix("1.e5", FloatSeconds).Real)
	assert.Equal(t, int64(math.MaxInt64), RubyInteger.prefix("99999999999999999999x", Seconds).Whole)
}

func TestReprFloat(t *testing.T) {
	for f, want := range map[float64]string{
		2147483649: "2147483649.0", 1795262402.1234567: "1795262402.1234567", 0.5: "0.5", 0: "0.0", 1e16: "1e+16",
		123456789012345678: "1.2345678901234568e+17", 1e15: "1000000000000000.0", 0.00001: "1e-05", math.Inf(1): "inf",
	} {
		assert.Equal(t, want, reprFloat(f))
	}
}

func TestDialectNamed(t *testing.T) {
	for _, d := range Dialects() {
		byName, err := DialectNamed(d.Name)
		require.NoError(t, err)
		byLetter, err := DialectNamed(d.Letter)
		require.NoError(t, err)
		assert.Same(t, d, byName)
		assert.Same(t, d, byLetter)
	}
	_, err := DialectNamed("jedis")
	assert.ErrorContains(t, err, "jedis-ms")
}

// FuzzRead: no value of any bytes makes a reader panic. A value that reads as a number reads the same
// after the writer has written that number again.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", "0", "-1", "1795262400123", "1795262400.123", "1795262400-12-a", "123e4567-e89b-42d3-a456-426614174000:5",
		`"1795262400123"`, "7301234567890123456", "inf", "nan", "1_0", "٣", "\x00", "\xff\xfe", "1e400", "+", ":", "-", "a:b:c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, d := range Dialects() {
			n, ok := d.Read(value)
			d.JudgeAsOldCode(value, noon, "me")
			_, readable := d.ExpiresAt(value)
			require.True(t, ok == readable, "%s: Read says %v, ExpiresAt %v for %q", d.Name, ok, readable, value)
			if !ok || n.Float && (math.IsNaN(n.Real) || math.IsInf(n.Real, 0)) {
				continue
			}
			again, ok := d.Read(d.Layout.join(d.Unit.text(n), "123e4567-e89b-42d3-a456-426614174000"))
			if d.Layout == NumberDashOwner && n.before(whole(0)) {
				continue // a minus sign and the separator are the same byte
			}
			require.False(t, !ok || !again.equal(n), "%s: %q reads as %+v, written again as %+v", d.Name, value, n, again)
		}
	})
}

// The bytes are those that FST 2.57, which jboot 3.16.0 uses, printed for these numbers.
func TestJBootWritesWhatFSTWrites(t *testing.T) {
	for n, bytes := range map[int64]string{
		1437000000123:       "\xf6\x82\x7b\xe2\xdf\x93\x4e\x01\x00\x00",
		5000000000000000000: "\xf6\x82\x00\x00\xf4\x44\x82\x91\x63\x45",
		9199999999999999999: "\xf6\x82\xff\xff\x97\x9d\x41\xf7\xac\x7f",
	} {
		assert.Equal(t, bytes, JBoot.BridgeValue(n, ""))
		read, ok := JBoot.Read(bytes)
		assert.True(t, ok)
		assert.Equal(t, n, read.Whole)
	}
	for bytes, n := range map[string]int64{"\xf6\x01": 1, "\xf6\xfb": -5, "\xf6\x7f": 127, "\xf6\x80\xff\x7f": 32767} {
		read, ok := JBoot.Read(bytes)
		assert.True(t, ok)
		assert.Equal(t, n, read.Whole)
	}
}

// TestLeftover: only redis-py's losers leave what never expires, and only its holders delete it.
func TestLeftover(t *testing.T) {
	left := map[string]string{}
	for _, d := range Dialects() {
		if d.Leftover() != "" {
			left[d.Name] = d.Leftover()
		}
	}
	assert.Equal(t, map[string]string{"redispy-float": "2147483649.0"}, left)
}

// A client that nothing can share a key with is refused by its name, in words.
func TestBlindSetIsRefused(t *testing.T) {
	_, err := DialectNamed("blind-set")
	require.Error(t, err)
	assert.ErrorContains(t, err, "overwrite")
	assert.NotContains(t, err.Error(), "no dialect is named")
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
