package census

import (
	"fmt"
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

const (
	aUUID = "6b1e0b0c-6f0c-4a8b-9d0a-0f1e2d3c4b5a"
	hex32 = "6b1e0b0c6f0c4a8b9d0a0f1e2d3c4b5a"
)

// noon is the server's clock in these tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ms(d time.Duration) string   { return fmt.Sprint(noon.Add(d).UnixMilli()) }
func sec(d time.Duration) string  { return fmt.Sprint(noon.Add(d).Unix()) }
func nano(d time.Duration) string { return fmt.Sprint(noon.Add(d).UnixNano()) }
func float(d time.Duration) string {
	return fmt.Sprintf("%.2f", float64(noon.Add(d).UnixMilli())/1000)
}

var placeholder = regexp.MustCompile(`\{(\w+):?([^}]*)\}`)

// written is a value of the table, with what its placeholders stand for.
func written(t *testing.T, value string) string {
	plain, err := strconv.Unquote(`"` + value + `"`)
	require.NoError(t, err, value)
	return placeholder.ReplaceAllStringFunc(plain, func(text string) string {
		m := placeholder.FindStringSubmatch(text)
		d, _ := time.ParseDuration(m[2])
		switch m[1] {
		case "ms":
			return ms(d)
		case "sec":
			return sec(d)
		case "nano":
			return nano(d)
		case "float":
			return float(d)
		case "fst":
			return protocol.JBoot.BridgeValue(noon.Add(d).UnixMilli(), "")
		case "uuid":
			return aUUID
		case "hex":
			return hex32
		case "none":
			return ""
		case "long":
			return strings.Repeat("1", Peek)
		}
		return text
	})
}

func TestClassify(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	for _, row := range redistest.Rows(t, "testdata/classify.txt") {
		require.Len(t, row, 6, row)
		k := Look{Key: []byte(row[0]), Type: "string", Value: []byte(written(t, row[1])), TTL: NoTTL}
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

// A time beside its TTL may also be of a legacy client that sets one: the finding says whose it could be.
func TestClassifySaysWhoElseItMayBe(t *testing.T) {
	judge := Judge{Now: protocol.InstantOf(noon), GhostAfter: time.Hour}
	f := judge.Classify(&Look{Key: []byte("lock:spring"), Type: "string", Value: []byte(ms(time.Minute)), TTL: 60_000})
	assert.Equal(t, []string{"jedis-ms", "servicestack"}, f.Perhaps)
	assert.Empty(t, f.Dialects)
	f = judge.Classify(&Look{Key: []byte("lock:k"), Type: "string", Value: []byte(aUUID), TTL: 60_000})
	assert.Empty(t, f.Perhaps)
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
			require.False(t, got.Format == "" || got.State == "", "%q = %q: no format or state: %+v", key, value, got)
			require.False(t, got.Format == UnknownFormat && got.State != UnknownState, "%q = %q: unknown, but %s", key, value, got.State)
			require.False(t, got.Format != UnknownFormat && got.Confidence == None, "%q = %q: %s of no confidence", key, value, got.Format)
			require.False(t, got.Format == Token && ttl == NoTTL || got.Format == TokenNoTTL && ttl != NoTTL, "%q = %q with TTL %d: %s", key, value, ttl, got.Format)
		}
	})
}
