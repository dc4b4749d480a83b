package overlaps

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Result is what several processes saw together.
type Result struct {
	From         time.Time `json:"from"` // the time that all of them cover, on the server's clock; empty if To is not later
	To           time.Time `json:"to"`
	ClockErrorMS float64   `json:"clock_error_ms"` // of the process that knows least
	Holds        int64     `json:"holds"`
	Count        int64     `json:"overlap_count"`
	Overlaps     []Overlap `json:"overlaps"` // at most MostRows of them
	// Undecided are pairs of holds that are too close for the clocks to tell. None of them lasted longer than UndecidedMS.
	Undecided   int64   `json:"undecided"`
	UndecidedMS float64 `json:"undecided_most_ms"`
	Twice       int64   `json:"seen_twice"` // holds that two processes saw; each counts once
	// Unended are holds with no end in their file, where a client of another file acquired the key later. Their clients crashed, or still
	// believed to hold.
	Unended  int64    `json:"unended"`
	NotSeen  []string `json:"not_seen,omitempty"`  // why holds may be missing, by file
	NotClear []string `json:"not_clear,omitempty"` // why a pair is undecided, beside the clocks
}

// MostRows is how many overlaps are listed, in the order of their keys' names. All are counted.
const MostRows = 500

// Overlap is two clients of different processes that held one lock at once.
type Overlap struct {
	Key
	First  Holder    `json:"first"`
	Second Holder    `json:"second"`
	From   time.Time `json:"from"`     // the latest that it can have begun, on the server's clock
	Least  float64   `json:"least_ms"` // it lasted between Least and Most
	Most   float64   `json:"most_ms"`
}

// Holder is one side of an overlap.
type Holder struct {
	Client
	Source   string    `json:"source"` // the file
	Acquired time.Time `json:"acquired"`
}

// span is a hold on the server's clock, in microseconds since 1970. The bounds have the clock's error in them.
type span struct {
	*Hold
	file       int
	begin, end [2]int64
}

// sameValue says why a pair cannot be told apart.
const sameValue = "two clients wrote the same value at the same time: perhaps one client behind another address"

// Find compares the holds of several processes, each with the name of its file. It is an error where they are not of the same keys.
func Find(names []string, all []Seen) (Result, error) {
	if len(all) < 2 {
		return Result{}, errors.New("holds of one process have nothing to be compared with")
	}
	r := Result{From: all[0].From, To: all[0].To, Overlaps: []Overlap{}}
	keys := map[Key][]span{}
	for file, s := range all {
		if a, b := slices.Sorted(slices.Values(all[0].Match)), slices.Sorted(slices.Values(s.Match)); !slices.Equal(a, b) {
			return r, fmt.Errorf("the files are of different keys: %q and %q", a, b)
		}
		if s.From.After(r.From) {
			r.From = s.From
		}
		if s.To.Before(r.To) {
			r.To = s.To
		}
		for _, why := range s.NotSeen {
			r.NotSeen = append(r.NotSeen, names[file]+": "+why)
		}
		r.Holds += int64(len(s.Holds))
		r.ClockErrorMS = max(r.ClockErrorMS, float64(s.ClockErrorUS)/1000)
		for i := range s.Holds {
			h, zero := &s.Holds[i], s.From.UnixMicro()
			one := span{Hold: h, file: file}
			one.begin = [2]int64{zero + h.Begin[0] - s.ClockErrorUS, zero + h.Begin[1] + s.ClockErrorUS}
			one.end = [2]int64{zero + h.End[0] - s.ClockErrorUS, zero + h.End[1] + s.ClockErrorUS}
			keys[s.Keys[h.Key]] = append(keys[s.Keys[h.Key]], one)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(keys), func(a, b Key) int { return cmp.Or(a.DB-b.DB, cmp.Compare(a.Name, b.Name)) }) {
		spans := keys[key]
		slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.begin[0], b.begin[0]), a.file-b.file) })
		latest := make([]int64, len(all)) // acquisition in each file
		var open []span                   // those that may last until the one at hand begins
		for _, s := range spans {
			latest[s.file] = s.begin[0]
			open = slices.DeleteFunc(open, func(o span) bool { return o.end[1] <= s.begin[0] })
			for _, o := range open {
				if o.file != s.file {
					r.compare(names, all, key, o, s)
				}
			}
			open = append(open, s)
		}
		for _, s := range spans {
			for file, at := range latest {
				if !s.Ended && file != s.file && at > s.end[1] {
					r.Unended++
					break
				}
			}
		}
	}
	slices.SortStableFunc(r.Overlaps, func(a, b Overlap) int { return a.From.Compare(b.From) })
	return r, nil
}

// compare takes in two holds of a key, of different files.
func (r *Result) compare(names []string, all []Seen, key Key, a, b span) {
	if a.begin[0]+a.begin[1] > b.begin[0]+b.begin[1] { // the first began first, as far as the clocks tell
		a, b = b, a
	}
	from := max(a.begin[1], b.begin[1])
	least := min(a.end[0], b.end[0]) - from
	most := min(a.end[1], b.end[1]) - max(a.begin[0], b.begin[0])
	if most <= 0 {
		return
	}
	first, second := all[a.file].Clients[a.Client], all[b.file].Clients[b.Client]
	if alike := a.Mark == b.Mark && b.begin[0] <= a.begin[1] && a.begin[0] <= b.begin[1]; alike && first.Addr == second.Addr {
		r.Twice++
		return
	} else if alike {
		least = 0
		if !slices.Contains(r.NotClear, sameValue) {
			r.NotClear = append(r.NotClear, sameValue)
		}
	}
	if least <= 0 {
		r.Undecided++
		r.UndecidedMS = max(r.UndecidedMS, float64(most)/1000)
		return
	}
	r.Count++
	if len(r.Overlaps) < MostRows {
		holder := func(c Client, s span) Holder { return Holder{c, names[s.file], time.UnixMicro(s.begin[1]).UTC()} }
		r.Overlaps = append(r.Overlaps, Overlap{
			Key: key, First: holder(first, a), Second: holder(second, b), From: time.UnixMicro(from).UTC(),
			Least: float64(least) / 1000, Most: float64(most) / 1000,
		})
	}
}
