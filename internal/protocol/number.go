package protocol

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unit is what an expiry counts since the Unix epoch.
type Unit uint8

const (
	Milliseconds Unit = iota
	Seconds
	FloatSeconds // seconds as a 64-bit float, computed as Python and Ruby compute it
	Nanoseconds
)

// units have the name of each, the smallest step that it can express, and how many digits our days have before the point.
var units = [...]struct {
	name       string
	resolution time.Duration
	digits     int
}{
	Milliseconds: {"ms", time.Millisecond, 13},
	Seconds:      {"s", time.Second, 10},
	FloatSeconds: {"float", 1, 10},
	Nanoseconds:  {"ns", 1, 19},
}

// String returns the unit's name in arguments of scripts and on the command line.
func (u Unit) String() string { return units[u].name }

// Resolution returns the smallest lease step that the unit can express.
func (u Unit) Resolution() time.Duration { return units[u].resolution }

// Quantum returns the step in which clients write a time of this unit: floats carry microseconds.
func (u Unit) Quantum() time.Duration {
	if u == FloatSeconds {
		return time.Microsecond
	}
	return u.Resolution()
}

// Number is an expiry as a dialect computes with it: a 64-bit integer of its unit, or a float of
// seconds. Comparing in the dialect's own arithmetic, instead of converting, keeps the last bit.
type Number struct {
	Whole int64
	Real  float64
	Float bool
}

func whole(n int64) Number      { return Number{Whole: n} }
func floating(f float64) Number { return Number{Real: f, Float: true} }

// before is false when either side is not a number, as in Java, Python and Ruby.
func (n Number) before(m Number) bool {
	if n.Float {
		return n.Real < m.Real
	}
	return n.Whole < m.Whole
}

func (n Number) equal(m Number) bool {
	if n.Float {
		return n.Real == m.Real
	}
	return n.Whole == m.Whole
}

func (n Number) zero() bool { return n.equal(Number{Float: n.Float}) }

func (u Unit) one() Number {
	if u == FloatSeconds {
		return floating(1)
	}
	return whole(1)
}

// at converts a clock's reading to the unit, rounding as the clients do: integers towards the past,
// floats as Python's time.time does.
func (u Unit) at(now Instant) Number {
	if u == FloatSeconds {
		return floating(float64(now) / 1e9)
	}
	return whole(floorDiv(int64(now), int64(u.Resolution())))
}

// add returns now + lease + extra units in the unit's own arithmetic.
func (u Unit) add(now Instant, lease time.Duration, extra int64) Number {
	n := u.at(now)
	if n.Float {
		n.Real = n.Real + lease.Seconds() + float64(extra)
		return n
	}
	n.Whole += int64(lease/u.Resolution()) + extra
	return n
}

// instant converts back, saturating: a far-future bridge value is simply the end of time.
func (u Unit) instant(n Number) Instant {
	if n.Float {
		ns := n.Real * 1e9
		switch {
		case math.IsNaN(ns) || ns >= math.MaxInt64:
			return math.MaxInt64
		case ns <= math.MinInt64:
			return math.MinInt64
		}
		return Instant(ns)
	}
	r := int64(u.Resolution())
	switch {
	case n.Whole > math.MaxInt64/r:
		return math.MaxInt64
	case n.Whole < math.MinInt64/r:
		return math.MinInt64
	}
	return Instant(n.Whole * r)
}

// text writes a number as the clients of the unit do.
func (u Unit) text(n Number) string {
	if n.Float {
		return reprFloat(n.Real)
	}
	return strconv.FormatInt(n.Whole, 10)
}

// reprFloat is Python's repr and Ruby's to_s of a float: the shortest text that reads back the same,
// always with a point or an exponent, in positional notation below 10^16.
func reprFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
