package census

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
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
