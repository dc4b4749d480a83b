// This file compares our reading of a key's value with that of the real holders' own parsers:
// Long.parseLong and UUID.fromString on a JVM, float() as redis-py 2.9.1 calls it.

package parity

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

const samples = 10_000

func TestReadingsMatchTheRealParsers(t *testing.T) {
	server := redistest.Real(t)
	// Half a second is exact in a float. For other instants Python's own time.time(), which we follow,
	// divides nanoseconds and may differ in the last bit from the milliseconds that parse is given.
	now := time.Date(2026, 11, 21, 12, 0, 0, 500e6, time.UTC)
	for _, c := range []struct {
		kind    holders.Kind
		dialect *protocol.Dialect
	}{
		{holders.Article, protocol.JedisMS},
		{holders.JedisUUID, protocol.JedisUUID},
		{holders.RedisPy, protocol.RedisPyFloat},
	} {
		t.Run(c.kind.Name, func(t *testing.T) {
			holder := holders.Start(t, c.kind, server.URL())
			values := generate(rand.New(rand.NewPCG(20261121, 7)), now)
			go func() {
				for _, v := range values {
					holder.Send("parse %d %s", now.UnixMilli(), base64.StdEncoding.EncodeToString([]byte(v)))
				}
			}()
			seen := map[string]int{}
			differ := 0
			for _, v := range values {
				e := holder.Next(30 * time.Second)
				require.Equal(t, "parsed", e.Event, "%q: %+v", v, e)
				seen[e.Reading]++
				if got := reading(c.dialect, v, now); got != e.Reading {
					if differ++; differ <= 20 {
						t.Errorf("%q: the holder reads %s (%s %s), we read %s", v, e.Reading, e.Class, e.Message, got)
					}
				}
			}
			t.Logf("%d values: %v, %d read differently", len(values), seen, differ)
			for _, r := range []string{"live", "expired", reading(c.dialect, "no number", now)} {
				assert.Greater(t, seen[r], samples/20, "the sample reached %s", r)
			}
		})
	}
}

// reading names ours in the holders' words.
func reading(d *protocol.Dialect, value string, now time.Time) string {
	switch d.Judge(value, protocol.InstantOf(now), "") {
	case protocol.Live:
		return "live"
	case protocol.Expired:
		return "expired"
	}
	if d.OnForeign == protocol.ForeignExpired {
		return "unparsable-expired"
	}
	return "throws"
}

// generate makes values that lie around the boundaries of the parsers, and mutations of them.
func generate(r *rand.Rand, now time.Time) []string {
	fixed := []string{
		"", "0", "1", "-1", "+1", "-0", "+", "-", "+-1", " 1", "1 ", "\t1\n", "1_000", "_1", "1__0", "1_", "0x10", "010", "1e3", "1e", "1e+",
		"1e400", "-1e400", "1E5", ".5", "5.", ".", "1.2.3", "inf", "-inf", "+Infinity", "infinit", "nan", "-nan", "NaN", "1d", "1f", "1L",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "99999999999999999999",
		"٣٤٥", "１２３", "१२३", "𝟏𝟐", "1\x00", "\x001", "\xff\xfe", "1\u00a0", "\u20031", "1\v", "\f1", "\x1c1", "1\x1f", "true", "null", "None",
		"7301234567890123456", `"123"`, "550e8400-e29b-41d4-a716-446655440000", "550e8400e29b41d4a716446655440000",
		"1-1-1-1-1:5", "1-1-1-1:5", "1-1-1-1-1-1:5", "g-1-1-1-1:5", "550e8400-e29b-41d4-a716-446655440000:", ":5", "::", "a:b:c",
	}
	numbers := func() string {
		around := now.Add(time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour)
		switch r.IntN(8) {
		case 0:
			return fmt.Sprint(around.UnixMilli())
		case 1:
			return fmt.Sprint(around.Unix())
		case 2:
			return fmt.Sprint(around.UnixNano())
		case 3:
			return fmt.Sprintf("%.*f", r.IntN(9), float64(around.UnixNano())/1e9)
		case 4:
			return fmt.Sprint(now.UnixMilli() + int64(r.IntN(5)) - 2)
		case 5:
			return fmt.Sprintf("%.6f", float64(now.UnixMilli()+int64(r.IntN(5))-2)/1e3)
		case 6:
			return fmt.Sprint(r.Int64())
		default:
			return fmt.Sprintf("%de%d", r.IntN(100), r.IntN(30)-10)
		}
	}
	uuid := func() string {
		return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", r.Uint32(), r.Uint32()&0xffff, r.Uint32()&0xffff, r.Uint32()&0xffff, r.Uint64()&0xffffffffffff)
	}
	values := append([]string{}, fixed...)
	for len(values) < samples {
		v := numbers()
		if r.IntN(2) == 0 {
			v = uuid() + ":" + v
		}
		if r.IntN(10) == 0 {
			v = fixed[r.IntN(len(fixed))]
		}
		for range r.IntN(3) {
			v = mutate(r, v)
		}
		values = append(values, strings.ReplaceAll(v, "\r\n", ""))
	}
	return values
}

func mutate(r *rand.Rand, v string) string {
	const salt = "0123456789+-._eE :\tabcdefxXnNiI\"\x00\xff\u0663_"
	b := []byte(v)
	at := 0
	if len(b) > 0 {
		at = r.IntN(len(b))
	}
	c := salt[r.IntN(len(salt))]
	switch {
	case r.IntN(3) == 0 && len(b) > 0:
		b[at] = c
	case r.IntN(2) == 0 && len(b) > 0:
		b = append(b[:at], b[at+1:]...)
	default:
		b = append(b[:at], append([]byte{c}, b[at:]...)...)
	}
	return string(b)
}
