package overlaps_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/overlaps"
)

var zero = time.Unix(1_700_000_000, 0).UTC()

// seen is what a process saw of one client on one key.
func seen(addr string, clockError int64, holds ...overlaps.Hold) overlaps.Seen {
	return overlaps.Seen{
		From: zero, To: zero.Add(time.Second), ClockErrorUS: clockError, Keys: []overlaps.Key{{Name: "lock:1"}},
		Clients: []overlaps.Client{{Addr: addr, Kind: "legacy", Dialect: "jedis-ms"}}, Holds: holds,
	}
}

func hold(begin, begins, end, ends int64, mark uint32) overlaps.Hold {
	return overlaps.Hold{Begin: [2]int64{begin, begins}, End: [2]int64{end, ends}, Ended: true, Mark: mark}
}

func TestFind(t *testing.T) {
	names := []string{"a", "b"}
	find := func(a, b overlaps.Seen) overlaps.Result {
		r, err := overlaps.Find(names, []overlaps.Seen{a, b})
		require.NoError(t, err)
		return r
	}
	a := seen("10.0.0.1:1", 100, hold(1000, 1100, 5000, 5100, 1))
	for what, c := range map[string]struct {
		b                       overlaps.Seen
		count, undecided, twice int64
	}{
		"one after the other":                       {seen("10.0.0.2:2", 100, hold(5400, 5500, 6000, 6100, 2)), 0, 0, 0},
		"before it":                                 {seen("10.0.0.2:2", 100, hold(100, 200, 600, 700, 2)), 0, 0, 0},
		"too close for the commands":                {seen("10.0.0.2:2", 100, hold(4900, 5050, 6000, 6100, 2)), 0, 1, 0},
		"too close for the clocks":                  {seen("10.0.0.2:2", 100, hold(5200, 5200, 6000, 6100, 2)), 0, 1, 0},
		"a clock that is known badly":               {seen("10.0.0.2:2", 4000, hold(2000, 2000, 4000, 4000, 2)), 0, 1, 0},
		"within it":                                 {seen("10.0.0.2:2", 100, hold(2000, 2100, 4000, 4100, 2)), 1, 0, 0},
		"the same, seen twice":                      {seen("10.0.0.1:1", 100, hold(1050, 1060, 5050, 5060, 1)), 0, 0, 1},
		"the same value behind another address":     {seen("10.0.0.9:9", 100, hold(1050, 1060, 5050, 5060, 1)), 0, 1, 0},
		"the same address of another host's client": {seen("10.0.0.1:1", 100, hold(1050, 1060, 5050, 5060, 2)), 1, 0, 0},
		"the same value, later":                     {seen("10.0.0.1:1", 100, hold(3000, 3010, 5050, 5060, 1)), 1, 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			r := find(a, c.b)
			assert.Equal(t, []int64{c.count, c.undecided, c.twice}, []int64{r.Count, r.Undecided, r.Twice})
			assert.Equal(t, r, swapped(find(c.b, a)), "in the other order")
		})
	}
	r := find(a, seen("10.0.0.2:2", 50, hold(2000, 2100, 4000, 4100, 2)))
	require.Len(t, r.Overlaps, 1)
	assert.Equal(t, 1.9-0.1, r.Overlaps[0].Least)
	assert.Equal(t, 2.1+0.1, r.Overlaps[0].Most)
	assert.Equal(t, "a", r.Overlaps[0].First.Source)
	assert.Equal(t, "lock:1", r.Overlaps[0].Name)
	assert.Equal(t, 0.1, r.ClockErrorMS)

	b := seen("10.0.0.2:2", 100, hold(2000, 2100, 4000, 4100, 2))
	b.Keys[0].DB = 1
	assert.Zero(t, find(a, b).Count, "the same name in another database")

	crashed := seen("10.0.0.1:1", 100, overlaps.Hold{Begin: [2]int64{0, 10}, End: [2]int64{0, 10}, Mark: 1})
	r = find(crashed, seen("10.0.0.2:2", 100, hold(9000, 9100, 9500, 9600, 2)))
	assert.EqualValues(t, 1, r.Unended)
	assert.Zero(t, find(crashed, seen("10.0.0.2:2", 100)).Unended)

	b = seen("10.0.0.2:2", 100)
	b.From, b.To, b.NotSeen = zero.Add(200*time.Millisecond), zero.Add(2*time.Second), []string{"3 bytes"}
	r = find(a, b)
	assert.Equal(t, []any{b.From, a.To, []string{"b: 3 bytes"}}, []any{r.From, r.To, r.NotSeen})

	b.Match = []string{"lock:*"}
	_, err := overlaps.Find(names, []overlaps.Seen{a, b})
	assert.ErrorContains(t, err, "different keys")
	_, err = overlaps.Find(names[:1], []overlaps.Seen{a})
	assert.Error(t, err)
}

// swapped gives the files of a result each other's names.
func swapped(r overlaps.Result) overlaps.Result {
	other := map[string]string{"a": "b", "b": "a"}
	for i := range r.Overlaps {
		o := &r.Overlaps[i]
		o.First.Source, o.Second.Source = other[o.First.Source], other[o.Second.Source]
	}
	return r
}

// TestFindTellsTheTruth lets clients of three processes hold keys at random, and shows each process bounds around the truth. Each
// overlap of two processes is certain or undecided, none is made up, and its length is within its bounds.
func TestFindTellsTheTruth(t *testing.T) {
	certain, undecided := int64(0), int64(0)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		type truth struct {
			file, key  int
			begin, end int64
		}
		var all []truth
		files, names := make([]overlaps.Seen, 3), []string{"a", "b", "c"}
		for i := range files {
			files[i] = seen(fmt.Sprint("10.0.0.", i, ":1"), r.Int64N(300))
			files[i].Keys = []overlaps.Key{{Name: "lock:1"}, {Name: "lock:2"}}
		}
		for n := range 12 {
			one := truth{file: r.IntN(3), key: r.IntN(2), begin: r.Int64N(20_000)}
			one.end = one.begin + r.Int64N(3000)
			all = append(all, one)
			f := &files[one.file]
			off := r.Int64N(2*f.ClockErrorUS+1) - f.ClockErrorUS
			around := func(at int64) [2]int64 { return [2]int64{at + off - r.Int64N(200), at + off + r.Int64N(200)} }
			h := overlaps.Hold{Key: one.key, Begin: around(one.begin), End: around(one.end), Ended: true, Mark: uint32(n)}
			h.End[1] = max(h.End[1], h.Begin[1])
			h.End[0] = max(h.End[0], h.Begin[0]) // its last sign is not before its first
			f.Holds = append(f.Holds, h)
		}
		found, err := overlaps.Find(names, files)
		require.NoError(t, err)
		var real, long int64
		for i, a := range all {
			for _, b := range all[:i] {
				if a.file == b.file || a.key != b.key {
					continue
				}
				if lasts := min(a.end, b.end) - max(a.begin, b.begin); lasts > 0 {
					real++
					if lasts > int64(1000*found.UndecidedMS) {
						long++
					}
				}
			}
		}
		require.LessOrEqual(t, found.Count, real, "seed %d: none is made up", seed)
		require.GreaterOrEqual(t, found.Count+found.Undecided, real, "seed %d: none is forgotten", seed)
		require.GreaterOrEqual(t, found.Count, long, "seed %d: what is undecided lasted no longer than it says", seed)
		certain, undecided = certain+found.Count, undecided+found.Undecided
	}
	assert.Greater(t, certain, int64(400))
	assert.Greater(t, undecided, int64(50))
}

func TestSeenAsJSON(t *testing.T) {
	want := seen("10.0.0.1:1", 100, hold(1000, 1100, 5000, 5100, 4_000_000_000), overlaps.Hold{Begin: [2]int64{0, 3}, End: [2]int64{2, 4}})
	want.Format, want.Match, want.NotSeen = overlaps.Format, []string{"lock:*"}, []string{"9 bytes"}
	var text bytes.Buffer
	require.NoError(t, want.Write(&text))
	got, err := overlaps.Read(&text)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	for _, wrong := range []string{
		"", "{}", `{"format":"lockmigrate-holds-2"}`, `{"format":"lockmigrate-holds-1","clock_error_us":-1}`,
		`{"format":"lockmigrate-holds-1","holds":[[0,0,1,2,3,4,1,5]]}`,
		`{"format":"lockmigrate-holds-1","keys":[{"db":0,"name":"k"}],"clients":[{"addr":"a","kind":"legacy"}],"holds":[[0,0,1,2,3]]}`,
		`{"format":"lockmigrate-holds-1","keys":[{"db":0,"name":"k"}],"clients":[{"addr":"a","kind":"legacy"}],"holds":[[0,0,2,1,3,4,1,5]]}`,
		`{"format":"lockmigrate-holds-1","keys":[{"db":0,"name":"k"}],"clients":[{"addr":"a","kind":"legacy"}],"holds":[[0,0,9,9,3,4,1,5]]}`,
	} {
		_, err := overlaps.Read(strings.NewReader(wrong))
		assert.Error(t, err, wrong)
	}
}

// FuzzRead reads files that somebody else wrote.
func FuzzRead(f *testing.F) {
	var text bytes.Buffer
	require.NoError(f, seen("10.0.0.1:1", 100, hold(1000, 1100, 5000, 5100, 7)).Write(&text))
	f.Add(text.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, err := overlaps.Read(bytes.NewReader(data)); err == nil {
			_, _ = overlaps.Find([]string{"a", "b"}, []overlaps.Seen{s, s})
		}
	})
}
