package protocol

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// The numbers that every legacy reader takes for an expiry that never comes: more than 61 random bits that fit a
// signed 64-bit integer. In nanoseconds they lie after 2128, in every other unit millions of years ahead.
const (
	BridgeLow  = 5_000_000_000_000_000_000
	BridgeHigh = 9_200_000_000_000_000_000
)

// BridgeValue returns what a bridge holder writes on a key of this dialect for a number. The number is
// at least BridgeLow and less than BridgeHigh. Owner is the owner's part where the layout has one: for
// UUIDColonNumber a UUID that no client has, since a client of that dialect takes its own for expired;
// for NumberDashOwner a pid and a thread; for NumberColonOwner a pid.
func (d *Dialect) BridgeValue(n int64, owner string) string {
	return d.Layout.join(strconv.FormatInt(n, 10), owner)
}

// BridgeNumber tells that a value is a bridge value of this dialect, with the number in it.
func (d *Dialect) BridgeNumber(value string) (n int64, ok bool) {
	number, ok := d.serverNumber(value)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(number, 10, 64)
	return n, err == nil && n >= BridgeLow && n < BridgeHigh
}

// Expiries that the server believes: nothing before September 2001, nothing more than a century ahead.
// Other numbers are in another unit, or are a thread id, a flag, or a bridge value without its TTL.
const (
	EarliestExpiry = Instant(1e12) * Instant(time.Millisecond)
	furthestAhead  = 32e11 * time.Millisecond
)

// ServerExpiry returns the instant that a legacy value stands for as the bridge's scripts read it
// (bridge_shared.lua): more strictly than any client does, in whole milliseconds, rounded up.
func (d *Dialect) ServerExpiry(value string, now Instant) (Instant, bool) {
	number, ok := d.serverNumber(value)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, false
	}
	switch d.Unit {
	case Seconds:
		n = (n + 1) * 1000 // a reader calls it over when its own count of seconds has passed it
	case FloatSeconds:
		n = math.Ceil(n * 1000)
	case Nanoseconds:
		n = math.Ceil(n / 1e6)
	}
	ms := floorDiv(int64(now), int64(time.Millisecond))
	if n < float64(EarliestExpiry)/1e6 || n > float64(ms)+float64(furthestAhead)/1e6 {
		return 0, false
	}
	return Instant(n) * Instant(time.Millisecond), true
}

// serverNumber cuts the number out of a value: digits, with at most one point in a unit that has one.
func (d *Dialect) serverNumber(value string) (string, bool) {
	number, ok := d.Layout.strict(value)
	if d.Unit == FloatSeconds {
		before, after, _ := strings.Cut(number, ".")
		return number, ok && len(number) <= 32 && digits(before) && (after == "" || digits(after))
	}
	return number, ok && len(number) <= 32 && digits(number)
}

// Written tells whether a value has the very form of this dialect's clients for an expiry of our days. It
// returns the instant that the value stands for. It is stricter than Read, which tells what they would
// read.
func (d *Dialect) Written(value string) (Instant, bool) {
	number, ok := d.serverNumber(value)
	if !ok || number[0] == '0' {
		return 0, false
	}
	whole, part, point := strings.Cut(number, ".")
	if len(whole) != units[d.Unit].digits || d.Unit == FloatSeconds && (!point || part == "") {
		return 0, false
	}
	n, ok := d.Syntax.parse(number)
	return d.Unit.instant(n), ok
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
