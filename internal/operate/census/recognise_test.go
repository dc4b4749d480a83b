package census

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

var midday = protocol.InstantOf(noon)

// What a dialect's clients write is recognised as that dialect's, with its instant and its step; and so is the
// bridge's value for it.
func TestEveryDialectIsRecognised(t *testing.T) {
	for _, d := range protocol.Dialects() {
		value, at := d.Expiry(midday+123456789, 30*time.Second, map[protocol.Layout]string{protocol.UUIDColonNumber: aUUID, protocol.NumberDashOwner: "7-9"}[d.Layout])
		v := Recognise(value, midday)
		require.Equal(t, ExpiryValue, v.Kind, "%s %q", d.Name, value)
		assert.Contains(t, v.Dialects, d)
		assert.InDelta(t, float64(at), float64(v.At), 1000, d.Name)
		assert.Equal(t, d.Format, v.Format)
		assert.Equal(t, d.Unit.Quantum(), v.Quantum, d.Name)
		assert.True(t, v.Live(midday))
		assert.False(t, v.Live(midday.Add(time.Hour)))
		f := Judge{Now: midday, GhostAfter: time.Hour}.Classify(&Look{Key: []byte("lock"), Type: "string", Value: []byte(value), TTL: NoTTL})
		assert.True(t, f.HasExpiry && f.Expires == v.At, d.Name)
		for _, other := range v.Dialects {
			assert.Equal(t, d.Format, other.Format)
		}
		b := Recognise(d.BridgeValue(protocol.BridgeLow+7, map[protocol.Layout]string{protocol.UUIDColonNumber: aUUID, protocol.NumberDashOwner: "0-0"}[d.Layout]), midday)
		assert.Equal(t, BridgeValue, b.Kind, d.Name)
		if d.Forever != "" && d.Forever != "1" {
			assert.True(t, Recognise(d.Forever, midday).Forever)
		}
	}
}

// Of the random tokens of Laravel, redislock and redsync hardly one is missed, and camel case is none.
func TestScrambledTokens(t *testing.T) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		name  string
		token func() string
	}{
		{"Laravel: 16 letters and digits", func() string {
			b := make([]byte, 16)
			for i := range b {
				b[i] = letters[rng.IntN(len(letters))]
			}
			return string(b)
		}},
		{"redislock: 16 bytes, no padding", func() string { return base64.RawURLEncoding.EncodeToString(bytesOf(rng, 16)) }},
		{"redsync: 16 bytes, padded", func() string { return base64.StdEncoding.EncodeToString(bytesOf(rng, 16)) }},
		{"32 bytes", func() string { return base64.StdEncoding.EncodeToString(bytesOf(rng, 32)) }},
	} {
		missed := 0
		for range 100_000 {
			if !isRandom(c.token()) {
				missed++
			}
		}
		assert.LessOrEqual(t, missed, 50, c.name)
	}
	for _, word := range []string{
		"processing-orders", "ProcessingOrders", "processingOrders1", "PROCESSING123456", "worker2026030112", "aaaaaaaaaaaaaaaa",
		"processOrderQueue", "ProcessingOrdersOfQueueNumber12", "workers/Orders-7/Europe", "order-service-Worker-host", "workers/Orders-7/Europe", "a",
	} {
		assert.False(t, isRandom(word), word)
	}
}

func bytesOf(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestPagesAdaptToTheServer(t *testing.T) {
	for _, c := range []struct {
		count     int
		roundTrip time.Duration
		cost      time.Duration
		want      int
	}{
		{100, 0, time.Millisecond, 200},
		{1000, 0, time.Millisecond, 1000},
		{100, 0, 5 * time.Millisecond, 100},
		{100, 0, 20 * time.Millisecond, 50},
		{10, 0, time.Second, 10},
		{100, 30 * time.Millisecond, 31 * time.Millisecond, 200}, // far away, and quick
		{100, 30 * time.Millisecond, 45 * time.Millisecond, 100},
		{100, 30 * time.Millisecond, 90 * time.Millisecond, 50},
	} {
		s := scanner{count: c.count, most: mostCount, roundTrip: c.roundTrip}
		s.adapt(c.cost)
		assert.Equal(t, c.want, s.count, "%+v", c)
	}
}

func TestScanKeepsTheRate(t *testing.T) {
	s := redistest.Mini(t)
	for i := range 300 {
		s.Mini.Set(fmt.Sprint("k", i), "v")
	}
	_, sum, err := scan(t, s, Options{Rate: 1000})
	require.NoError(t, err)
	assert.EqualValues(t, 300, sum.Scanned)
	assert.GreaterOrEqual(t, sum.Elapsed, 250*time.Millisecond)
}

const (
	aUUID = "6b1e0b0c-6f0c-4a8b-9d0a-0f1e2d3c4b5a"
	hex32 = "6b1e0b0c6f0c4a8b9d0a0f1e2d3c4b5a"
)

// noon is the server's clock in these tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var placeholder = regexp.MustCompile(`\{(\w+):?([^}]*)\}`)

// written is a word of testdata, with what its placeholders stand for.
func written(t testing.TB, value string, now time.Time) string {
	plain, err := strconv.Unquote(`"` + value + `"`)
	require.NoError(t, err, value)
	return placeholder.ReplaceAllStringFunc(plain, func(text string) string {
		m := placeholder.FindStringSubmatch(text)
		d, _ := time.ParseDuration(m[2])
		switch m[1] {
		case "ms":
			return fmt.Sprint(now.Add(d).UnixMilli())
		case "sec":
			return fmt.Sprint(now.Add(d).Unix())
		case "nano":
			return fmt.Sprint(now.Add(d).UnixNano())
		case "float":
			return fmt.Sprintf("%.2f", float64(now.Add(d).UnixMilli())/1000)
		case "fst":
			return protocol.JBoot.BridgeValue(now.Add(d).UnixMilli(), "")
		case "uuid":
			return aUUID
		case "hex":
			return hex32
		case "none":
			return ""
		case "long":
			return strings.Repeat("1", Peek)
		case "big":
			return strings.Repeat("x", 1<<20)
		}
		return text
	})
}

func TestClassify(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	for _, row := range redistest.Rows(t, "testdata/classify.txt") {
		require.Len(t, row, 6, row)
		k := Look{Key: []byte(row[0]), Type: "string", Value: []byte(written(t, row[1], noon)), TTL: NoTTL}
		if row[2] != "-" {
			_, err := fmt.Sscan(row[2], &k.TTL)
			require.NoError(t, err, row)
		}
		if fields, hash := strings.CutPrefix(string(k.Value), "hash:"); hash {
			k.Type, k.Value = "hash", nil
			for field := range strings.SplitSeq(fields, ",") {
				if name, value, found := strings.Cut(field, "="); found {
					k.Fields = append(k.Fields, Field{[]byte(name), []byte(value)})
				}
			}
		}
		f := judge.Classify(&k)
		assert.Equal(t, row[3:], []string{string(f.Format), string(f.State), f.Confidence.String()}, "%q", row)
	}
}

// FuzzClassify: no key, value or TTL makes the classifier panic or contradict itself.
func FuzzClassify(f *testing.F) {
	for _, d := range protocol.Dialects() {
		value, _ := d.Expiry(midday, time.Minute, aUUID)
		f.Add([]byte("lock"), []byte(value), int64(-1), []byte("f"), false)
	}
	for _, v := range strings.Fields(`{ms:0s} {sec:0s} {nano:0s} {float:0s} {uuid} {uuid}:{ms:0s} \"{ms:0s}\" 6123456789012345678 1-2-3 \x00\x01\x02\x03\x04\x05\x06\x07`) {
		f.Add([]byte("lock"), []byte(written(f, v, noon)), int64(-1), []byte("f"), false)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, ttl int64, field []byte, chosen bool) {
		v := Recognise(string(value), midday)
		require.False(t, (v.Kind == ExpiryValue) != (v.Format != "") || v.Kind == ExpiryValue && !v.Forever && !plausible(v.At, midday), "%q: %+v", value, v)
		if v.Kind == ExpiryValue {
			v.Live(midday)
		}
		require.False(t, v.Kind == TextValue && bytes.IndexByte(value, 0) >= 0, "%q is no text", value)
		ttl = max(ttl, NoTTL)
		judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour, Chosen: chosen}
		for _, k := range []Look{
			{Key: key, Type: "string", Value: value, TTL: ttl},
			{Key: key, Type: "hash", Fields: []Field{{field, value}}, TTL: ttl},
			{Key: key, Type: "list", TTL: ttl},
		} {
			got := judge.Classify(&k)
			require.False(t, got.Format == "" || got.State == "", "%q = %q: no format or state: %+v", key, value, got)
			require.False(t, got.Format == UnknownFormat && got.State != UnknownState, "%q = %q: unknown, but %s", key, value, got.State)
			require.False(t, got.Format != UnknownFormat && got.Confidence == None, "%q = %q: %s of no confidence", key, value, got.Format)
			require.False(t, got.Format == Token && ttl == NoTTL || got.Format == TokenNoTTL && ttl != NoTTL, "%q = %q with TTL %d: %s", key, value, ttl, got.Format)
		}
	})
}
