package census

import (
	"bytes"
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
