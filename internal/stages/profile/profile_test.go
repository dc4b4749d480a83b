package profile_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

func TestRoundTrip(t *testing.T) {
	p := profile.Profile{Version: profile.Version, Window: profile.Window{Start: time.Unix(1, 0).UTC(), Seconds: 10, Masters: 1}, Failovers: &profile.Failovers{Seen: 1, Seconds: 9.5}, Clients: []profile.Client{{
		Name: "10.0.0.1:4", Kind: "legacy", Dialect: "jedis-ms", Connections: 1, AtOnce: 1, SkewMS: -4999.6, SkewKnown: true,
		Clock: []profile.Reading{{At: time.Unix(1, 0).UTC(), SkewMS: -5000, ErrorMS: 1}},
		Uses: []profile.Use{{Family: "lock.#", Lease: profile.Lease{LeaseMS: 30000},
			Hold: profile.Spread{N: 2, Quantiles: []profile.Quantile{{Share: 0, MS: 1}, {Share: 1, MS: 2.5}}}}}}}}
	p.Share("lock.#", []map[int]int64{{0: 4}})
	var text bytes.Buffer
	require.NoError(t, p.Write(&text))
	got, err := profile.Read(&text)
	require.NoError(t, err)
	assert.Equal(t, p, got)
}

func TestRefused(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `{"version":3}`, `{"version":4,"clients":[{"connections":0}]}`, `{"version":4,"clients":[{"connections":1,"at_once":1,"uses":[{"lease_ms":-1}]}]}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1,"poll":{"n":-1}}]}`, `{"version":4,"window":{"seconds":-1}}`,
		`{"version":4,"failovers":{"seen":-1,"seconds":9}}`, `{"version":4,"failovers":{"seen":1,"seconds":0}}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1,"uses":[{"hold":{"n":2,"quantiles":[{"share":0.5,"ms":3},{"share":0.4,"ms":4}]}}]}]}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1},{"connections":1,"at_once":1}],"families":[{"name":"x","groups":[{"clients":[0,2],"acquired":[1,1],"keys":1}]}]}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1},{"connections":1,"at_once":1}],"families":[{"name":"x","groups":[{"clients":[1,0],"acquired":[1,1],"keys":1}]}]}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1},{"connections":1,"at_once":1}],"families":[{"name":"x","groups":[{"clients":[0,1],"acquired":[1],"keys":1}]}]}`,
		`{"version":4,"clients":[{"connections":1,"at_once":1},{"connections":1,"at_once":1}],"families":[{"name":"x","groups":[{"clients":[0],"acquired":[1],"keys":1}]}]}`,
	} {
		_, err := profile.Read(strings.NewReader(text))
		assert.Error(t, err, text)
	}
}

func fleet(n int) profile.Profile {
	p := profile.Profile{Version: profile.Version, Window: profile.Window{Start: time.Unix(0, 0).UTC(), Seconds: 100, Masters: 1}}
	for i := range n {
		p.Clients = append(p.Clients, profile.Client{Name: fmt.Sprint("c", i), Kind: "legacy", Connections: 1, AtOnce: 1, Uses: []profile.Use{{Family: "order:#", Lease: profile.Lease{LeaseMS: 1000}}}})
	}
	return p
}

func share(p profile.Profile, keys ...map[int]int64) profile.Profile {
	p.Share("order:#", keys)
	return p
}

// key is how often each client acquired one.
func key(by ...int64) map[int]int64 {
	k := map[int]int64{}
	for c, times := range by {
		if times > 0 {
			k[c] = times
		}
	}
	return k
}

// 100,000 keys of 200 clients, each key shared by two to four of them, stay small, and say how many clients share a key.
func TestManyKeysStaySmall(t *testing.T) {
	p := fleet(200)
	var keys []map[int]int64
	for n := range 100_000 {
		by := make([]int64, 200)
		for k := range 2 + n%3 {
			by[(n*7+k*(1+n%13))%200] = int64(1 + n%5)
		}
		keys = append(keys, key(by...))
	}
	p = share(p, keys...)
	var text bytes.Buffer
	require.NoError(t, p.Write(&text))
	t.Logf("%d bytes, %d groups", text.Len(), len(p.Families[0].Groups))
	assert.Less(t, text.Len(), 200_000)
	require.NoError(t, p.Validate())
	var sum, sharing, acquired int64
	for _, g := range p.Families[0].Groups {
		each := g.Sharers
		if each == 0 {
			each = float64(len(g.Clients))
		}
		sum, sharing, acquired = sum+g.Keys, sharing+int64(each*float64(g.Keys)+0.5), acquired+g.Total()
	}
	assert.EqualValues(t, 100_000, sum)
	assert.InDelta(t, 300_000, sharing, 3_000)
	var want int64
	for _, k := range keys {
		for _, n := range k {
			want += n
		}
	}
	assert.Equal(t, want, acquired)
}

func TestSpread(t *testing.T) {
	var low, high []time.Duration
	for i := range 100 {
		low, high = append(low, time.Duration(i+1)*time.Millisecond), append(high, time.Duration(1000+i)*time.Millisecond)
	}
	a, b := profile.SpreadOf(low, 300, 150*time.Millisecond), profile.SpreadOf(high, 100, 1099*time.Millisecond)
	assert.EqualValues(t, 1, a.At(0))
	assert.EqualValues(t, 150, a.Most(), "the largest value is kept, although the choice has not got it")
	assert.InDelta(t, 50.5, a.At(0.5), 0.5)
	assert.InDelta(t, 0.5, a.Below(50.5), 0.01)
	assert.InDelta(t, 50.5, a.Mean(), 2)
	both := a.And(b)
	assert.EqualValues(t, 400, both.N)
	assert.InDelta(t, 67, both.At(0.5), 1, "three of four are low: the median of both is at two thirds of the low ones")
	assert.InDelta(t, 0.75, both.Below(500), 0.1)
	assert.EqualValues(t, 1, both.At(0))
	assert.EqualValues(t, 1099, both.Most())
	assert.Equal(t, a.At(0.25), a.And(profile.Spread{}).At(0.25))
	assert.Equal(t, a.At(0.25), profile.Spread{}.And(a).At(0.25))
	assert.Zero(t, profile.Spread{}.At(0.5))
}

func at(seconds int64, skew, off float64) profile.Reading {
	return profile.Reading{At: time.Unix(seconds, 0).UTC(), SkewMS: skew, ErrorMS: off}
}

func TestDrift(t *testing.T) {
	_, _, known := profile.Client{Clock: []profile.Reading{at(0, 1, 1)}}.Drift()
	assert.False(t, known)
	ppm, off, known := profile.Client{Clock: []profile.Reading{at(0, 10, 20), at(10, 0, 1), at(500, 40, 30), at(1010, 50, 1)}}.Drift()
	assert.True(t, known)
	assert.InDelta(t, 50, ppm, 1e-9, "50 ms in 1,000 s")
	assert.InDelta(t, 2, off, 1e-9, "the two readings that are exact speak")
}

// TestFailovers: those of several servers add up.
func TestFailovers(t *testing.T) {
	var unknown *profile.Failovers
	none, one := &profile.Failovers{Seconds: 5000}, &profile.Failovers{Seen: 1, Seconds: 3000}
	assert.Equal(t, &profile.Failovers{Seen: 1, Seconds: 8000}, none.Beside(one))
	assert.Equal(t, one, unknown.Beside(one))
	assert.Equal(t, 3000*time.Second, one.Every())
	assert.Zero(t, none.Every())
	assert.Zero(t, unknown.Every())
}
