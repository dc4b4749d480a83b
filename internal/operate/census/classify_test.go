package census

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const (
	fstFormat = Format("fst-expiry-ms")
	aUUID     = "6b1e0b0c-6f0c-4a8b-9d0a-0f1e2d3c4b5a"
	hex32     = "6b1e0b0c6f0c4a8b9d0a0f1e2d3c4b5a"
)

// noon is the server's clock in these tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ms(d time.Duration) string   { return fmt.Sprint(noon.Add(d).UnixMilli()) }
func sec(d time.Duration) string  { return fmt.Sprint(noon.Add(d).Unix()) }
func nano(d time.Duration) string { return fmt.Sprint(noon.Add(d).UnixNano()) }
func fst(d time.Duration) string {
	return protocol.JBoot.BridgeValue(noon.Add(d).UnixMilli(), "")
}
func float(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(noon.Add(d).UnixMilli())/1000)
}

func TestClassify(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	const (
		none   = int64(NoTTL)
		minute = time.Minute
		day    = 24 * time.Hour
		year   = 365 * day
	)
	for _, c := range []struct {
		key, value string
		ttl        int64
		format     Format
		state      State
		sure       Confidence
	}{
		// Dialect A and its like: milliseconds.
		{"orders", ms(minute), none, ExpiryMS, Held, Medium},
		{"lock:orders", ms(minute), none, ExpiryMS, Held, High},
		{"lock:orders", ms(0), none, ExpiryMS, Held, High}, // expired means less than now
		{"lock:orders", ms(-1 * time.Millisecond), none, ExpiryMS, Expired, High},
		{"lock:orders", ms(-minute), none, ExpiryMS, Expired, High},
		{"orders", ms(-59 * minute), none, ExpiryMS, Expired, Medium},
		{"orders", ms(-2 * time.Hour), none, ExpiryMS, Ghost, Medium},
		{"lock:orders", ms(-3 * year), none, ExpiryMS, Ghost, High},
		{"lock:orders", ms(30 * day), none, ExpiryMS, Held, High},
		{"campaign:end", ms(30 * day), none, ExpiryMS, Held, Low},
		{"campaign:end", ms(20 * year), none, UnknownFormat, UnknownState, None},
		{"lock:spring", ms(minute), 999_999, ExpiryMS, Held, High},
		// A TTL that ends at about the same moment is the lock's own end, whatever the writer's clock.
		{"rate:joe", ms(0), 60_000, Token, Held, Low},
		{"spring", ms(minute), 60_000, Token, Held, Medium},
		{"lock:spring", ms(minute), 60_000, Token, Held, High},
		{"lock:npm", ms(-3400 * time.Millisecond), 6600, Token, Held, High}, // a clock 10 s behind
		{"resque:workerslock:job:q:[1]", sec(minute), 60_000, Token, Held, High},
		{"resque:lock:job:q:[1]", sec(minute), 60_000, BlindSet, Held, High},
		{"qo_tasks.add_a-1", sec(-3 * time.Second), 7000, BlindSet, Held, Medium},
		{"lock:old", ms(-2 * time.Hour), 3_600_000, ExpiryMS, Ghost, High}, // a TTL that a sweep has given
		{"k", `"` + ms(minute) + `"`, none, ExpiryMS, Held, Medium},
		{"k", `"` + ms(0) + `"`, none, ExpiryMS, Expired, Medium}, // ServiceStack: at or before
		{"k", `"123"`, none, UnknownFormat, UnknownState, None},
		{"k", `"`, none, UnknownFormat, UnknownState, None},

		// Seconds.
		{"lock:doc", sec(minute), none, ExpiryS, Held, High},
		{"lock:doc", sec(-minute), none, ExpiryS, Expired, High},
		{"doc", sec(minute), none, ExpiryS, Held, Medium},
		{"doc", sec(-2 * day), none, ExpiryS, Ghost, Low},
		{"user:1:phone", "1450000000", none, ExpiryS, Ghost, Low},
		{"lock:q", sec(minute) + ":4711", none, ExpiryS, Held, High},

		// Floats of seconds.
		{"py", float(minute), none, ExpiryFloatS, Held, Medium},
		{"py.lock", float(-minute), none, ExpiryFloatS, Expired, High},
		{"py.lock", float(-2 * time.Hour), none, ExpiryFloatS, Ghost, High},
		{"py", "2147483649.0", none, ExpiryFloatS, Held, High},
		{"price", "1234.56", none, UnknownFormat, UnknownState, None},
		{"ratio", "0.5", none, UnknownFormat, UnknownState, None},
		{"bad", "1700000000.", none, UnknownFormat, UnknownState, None},

		{"py", "1772366460.0", none, ExpiryFloatS, Held, Medium},
		{"retools.lock", float(minute), 59_000, ExpiryFloatS, Held, High},
		{"retools.lock", float(-3 * time.Second), 7000, ExpiryFloatS, Expired, High}, // the next legacy client takes it over

		// Nanoseconds.
		{"machinery", nano(minute), none, ExpiryNS, Held, Medium},
		{"machinery", nano(minute), 60_000, ExpiryNS, Held, Medium},
		{"tweet:1", nano(-900 * day), none, ExpiryNS, Ghost, Low}, // as a snowflake looks
		{"chord_lock", nano(-2 * day), none, ExpiryNS, Ghost, High},

		// Owners in the value.
		{"k", aUUID + ":" + ms(minute), none, UUIDExpiryMS, Held, High},
		{"k", aUUID + ":" + ms(-minute), none, UUIDExpiryMS, Expired, High},
		{"k", aUUID + ":35", 9000, Token, Held, Medium},
		{"lock:k", aUUID + ":35", 9000, Token, Held, High},
		{"k", sec(minute) + "-4711-70123456789012", none, SecPIDThread, Held, Medium},
		{"lock.k", sec(-minute) + "-4711-70123456789012", none, SecPIDThread, Expired, High},
		{"phone", "555-123-4567", none, UnknownFormat, UnknownState, None},
		{"date", "2026-03-01", none, UnknownFormat, UnknownState, None},
		{"k", ms(minute) + "|" + aUUID, 60_000, UnknownFormat, UnknownState, Medium},

		{"jboot", fst(minute), none, fstFormat, Held, High},
		{"jboot", fst(-minute), none, fstFormat, Expired, High},
		{"lock:jboot", fst(-2 * time.Hour), none, fstFormat, Ghost, High},
		{"lock:k", "\xf6\x82\x01", none, UnknownFormat, UnknownState, Medium}, // binary, no known lock
		{"lock:k", "\xac\xed\x00\x05t\x00\x01x", 9000, UnknownFormat, UnknownState, Medium},
		{"k", "\xac\xed\x00\x05t\x00\x01x", 9000, UnknownFormat, UnknownState, None},

		// The bridge, bare and wrapped.
		{"k", "5000000000000000000", 9000, Bridge, Held, High},
		{"k", "9199999999999999999", 9000, Bridge, Held, High},
		{"k", "9200000000000000000", 9000, UnknownFormat, UnknownState, None},
		{"k", "4999999999999999999", 9000, UnknownFormat, UnknownState, None},
		{"k", "6123456789012345678", none, Bridge, Ghost, Low},
		{"lock:k", "6123456789012345678", none, Bridge, Ghost, High},
		{"k", aUUID + ":6123456789012345678", 9000, Bridge, Held, High},
		{"k", "6123456789012345678-1-1", 9000, Bridge, Held, High},
		{"k", "\xf6\x82\x00\x00\xf4\x44\x82\x91\x63\x45", 9000, Bridge, Held, High},
		{"k", "6123456789012345678:77", 9000, Bridge, Held, High},

		// Tokens.
		{"lock:k", aUUID, 9000, Token, Held, High},
		{"lock:k", aUUID, none, TokenNoTTL, Held, High},
		{"lock:k", hex32, 9000, Token, Held, High},
		{"session:k", hex32, 9000, Token, Held, Low},
		{"lock:laravel", "q8ZK3mPx0aVbT7Ld", none, TokenNoTTL, Held, High}, // 16 letters and digits
		{"laravel_cache_:job", "q8ZK3mPx0aVbT7Ld", none, TokenNoTTL, Held, Low},
		{"lock:k", "ProcessingOrders", none, UnknownFormat, UnknownState, Low},
		{"lock:k", "q3VzZXIgdG9rZW4gMTIzNDU2Nzg5MA==", 9000, Token, Held, High},
		{"lock:k", "Zm9vYmFyYmF6MTIzNDU2Nw", 9000, Token, Held, High},
		{"job-lock:default:sync", "ADDED:2026-03-01T12:00:00.000Z@host-1", 9000, Token, Held, High},
		{"lock:k", "35", 9000, Token, Held, Medium},
		{"lock:k", "locked", 9000, Token, Held, Medium},
		{"lock:k", "locked", none, UnknownFormat, UnknownState, Low},
		{"lock:k", "1", none, TokenNoTTL, Held, Medium},
		{"lock:k", "0", none, UnknownFormat, UnknownState, Low},

		// No locks.
		{"counter", "1", none, UnknownFormat, UnknownState, None},
		{"counter", "42", none, UnknownFormat, UnknownState, None},
		{"greeting", "hello", none, UnknownFormat, UnknownState, None},
		{"doc", `{"a":1}`, none, UnknownFormat, UnknownState, None},
		{"empty", "", none, UnknownFormat, UnknownState, None},
		{"lock:empty", "", none, UnknownFormat, UnknownState, None},
		{"n", "-5", none, UnknownFormat, UnknownState, None},
		{"n", "99999999999999999999999", none, UnknownFormat, UnknownState, None},
		{"lock:big", strings.Repeat("1", Peek), none, UnknownFormat, UnknownState, None},
		{"redisson_unlock_latch:{k}:x", aUUID, 9000, UnknownFormat, UnknownState, None},
	} {
		t.Run(c.key+"="+c.value, func(t *testing.T) {
			f := judge.Classify(&Look{Key: []byte(c.key), Type: "string", Value: []byte(c.value), TTL: c.ttl})
			assert.Equal(t, c.format, f.Format, "format")
			assert.Equal(t, c.state, f.State, "state")
			assert.Equal(t, c.sure.String(), f.Confidence.String(), "confidence")
		})
	}
}

// A time beside its TTL may also be of a legacy client that sets one: the finding says whose it could be.
func TestClassifySaysWhoElseItMayBe(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	f := judge.Classify(&Look{Key: []byte("lock:spring"), Type: "string", Value: []byte(ms(time.Minute)), TTL: 60_000})
	assert.Equal(t, []string{"jedis-ms", "servicestack"}, f.Perhaps)
	assert.Empty(t, f.Dialects)
	f = judge.Classify(&Look{Key: []byte("lock:k"), Type: "string", Value: []byte(aUUID), TTL: 60_000})
	assert.Empty(t, f.Perhaps)
}

func TestClassifyTellsTheExpiry(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	for value, want := range map[string]time.Time{
		ms(time.Minute):    noon.Add(time.Minute),
		sec(time.Minute):   noon.Add(time.Minute),
		float(time.Minute): noon.Add(time.Minute),
		nano(time.Minute):  noon.Add(time.Minute),
		"2147483649.0":     time.Date(2038, 1, 19, 3, 14, 9, 0, time.UTC),
	} {
		f := judge.Classify(&Look{Key: []byte("lock"), Type: "string", Value: []byte(value), TTL: NoTTL})
		assert.True(t, f.HasExpiry, value)
		assert.Equal(t, want, f.Expires.Time(), value)
	}
	f := judge.Classify(&Look{Key: []byte("lock"), Type: "string", Value: []byte(aUUID), TTL: 9000})
	assert.Equal(t, noon.Add(9*time.Second), f.Expires.Time())
}

func TestClassifyBinarySeconds(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	value := binary.LittleEndian.AppendUint64(nil, uint64(noon.Add(time.Minute).Unix()))
	f := judge.Classify(&Look{Key: []byte("lock"), Type: "string", Value: value, TTL: NoTTL})
	assert.Equal(t, ExpiryS, f.Format)
	assert.Equal(t, Held, f.State)
}

func TestClassifyHash(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	one := func(name, value string) []Field { return []Field{{[]byte(name), []byte(value)}} }
	mode := Field{[]byte("mode"), []byte("write")}
	for _, c := range []struct {
		name   string
		key    string
		fields []Field
		ttl    int64
		format Format
		state  State
		sure   Confidence
	}{
		{"redisson", "orders", one(aUUID+":54", "1"), 29_000, Redisson, Held, High},
		{"held twice", "orders", one(aUUID+":54", "2"), 29_000, Redisson, Held, High},
		{"read-write", "orders", append(one(aUUID+":54", "1"), mode), 29_000, Redisson, Held, High},
		{"no TTL", "orders", one(aUUID+":54", "1"), NoTTL, Redisson, Ghost, High},
		{"hash-uid", "orders", one(aUUID, "1"), 9000, HashUID, Held, High - 1},
		{"hash-uid by name", "lock:orders", one("user-7", "1"), 9000, HashUID, Held, Medium},
		{"hash-uid by name, no TTL", "lock:orders", one("user-7", "1"), NoTTL, HashUID, Ghost, Medium},
		{"some hash", "orders", one("count", "1"), 9000, UnknownFormat, UnknownState, None},
		{"a counter by user", "visits", one(aUUID, "1"), NoTTL, HashUID, Ghost, Low},
		{"no number", "orders", one(aUUID+":54", "x"), 9000, UnknownFormat, UnknownState, None},
		{"two fields", "orders", append(one("a", "1"), one("b", "2")...), 9000, UnknownFormat, UnknownState, None},
		{"many", "orders", nil, 9000, UnknownFormat, UnknownState, None},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := judge.Classify(&Look{Key: []byte(c.key), Type: "hash", Fields: c.fields, TTL: c.ttl})
			assert.Equal(t, c.format, f.Format)
			assert.Equal(t, c.state, f.State)
			assert.Equal(t, c.sure.String(), f.Confidence.String())
		})
	}
}

func TestChosenKeysCountAsLocks(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour, Chosen: true}
	f := judge.Classify(&Look{Key: []byte("orders"), Type: "string", Value: []byte(sec(-48 * time.Hour)), TTL: NoTTL})
	assert.Equal(t, ExpiryS, f.Format)
	assert.Equal(t, "high", f.Confidence.String())
}

// FuzzClassify: no key, value or TTL makes the classifier panic or contradict itself.
func FuzzClassify(f *testing.F) {
	for _, v := range []string{ms(0), sec(0), nano(0), float(0), aUUID, aUUID + ":" + ms(0), `"` + ms(0) + `"`, "6123456789012345678", "1-2-3", "\x00\x01\x02\x03\x04\x05\x06\x07"} {
		f.Add([]byte("lock"), []byte(v), int64(-1), []byte("f"), false)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, ttl int64, field []byte, chosen bool) {
		ttl = max(ttl, NoTTL)
		judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour, Chosen: chosen}
		for _, k := range []Look{
			{Key: key, Type: "string", Value: value, TTL: ttl},
			{Key: key, Type: "hash", Fields: []Field{{field, value}}, TTL: ttl},
			{Key: key, Type: "list", TTL: ttl},
		} {
			got := judge.Classify(&k)
			if got.Format == "" || got.State == "" {
				t.Fatalf("%q = %q: no format or state: %+v", key, value, got)
			}
			if got.Format == UnknownFormat && got.State != UnknownState {
				t.Fatalf("%q = %q: unknown, but %s", key, value, got.State)
			}
			if got.Format != UnknownFormat && got.Confidence == None {
				t.Fatalf("%q = %q: %s of no confidence", key, value, got.Format)
			}
			if got.Format == Token && ttl == NoTTL || got.Format == TokenNoTTL && ttl != NoTTL {
				t.Fatalf("%q = %q with TTL %d: %s", key, value, ttl, got.Format)
			}
		}
	})
}
