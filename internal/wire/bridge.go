package wire

import (
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// bridgeRequest spells out the scripts of the bridge.
func bridgeRequest(c protocol.Command) (Request, error) {
	counter, fencing := fence(c)
	streak, after, gap := streak(c)
	longer := max((c.YieldMost - c.YieldAfter).Milliseconds(), 0)
	ttl := number(c.TTL.Milliseconds())
	switch c.Op {
	case protocol.BridgeTake:
		r, err := script(scripts.BridgeAcquire, c.Key, c.Guard, counter, streak, lineOf(c),
			c.Value, ttl, number(graceMS(c.Grace)), word(c.Unit.String()), word(c.Layout.String()), number(fencing), number(bound(c.NotAfter)), number(after), number(gap),
			number(longer), number(c.Patience.Milliseconds()))
		if c.Entry != "" || c.Passed != "" {
			r.n += copy(r.args[r.n:], []any{c.Entry, number(c.QueueTTL.Milliseconds()), c.Passed, flag(c.Quiet)})
		}
		return r, err
	case protocol.BridgeSettle:
		return script(scripts.BridgeSettle, c.Key, c.Guard,
			c.Value, c.TTL.Milliseconds(), graceMS(c.Grace), word(c.Unit.String()), word(c.Layout.String()), flag(c.PutBack), bound(c.NotAfter))
	case protocol.BridgeExtend:
		return script(scripts.BridgeRenew, c.Key, c.Guard, counter, streak,
			c.Value, ttl, number(fencing), bound(c.NotAfter), number(gap))
	default: // BridgeDrop
		r, err := script(scripts.BridgeRelease, c.Key, c.Guard, streak, lineOf(c), c.Value, number(gap), ttl, flag(c.Brief))
		switch {
		case c.Breath >= time.Millisecond:
			r.n += copy(r.args[r.n:], []any{c.Entry, number(c.Breath.Milliseconds())})
		case c.Entry != "":
			r.n += copy(r.args[r.n:], []any{c.Entry})
		}
		return r, err
	}
}

// gatedRequest finds the script that stands for a command of the old scheme when the command carries a
// bound: what writes has to check the bound where it writes.
func gatedRequest(c protocol.Command) (Request, bool) {
	gated := Request{}
	switch c.Op {
	case protocol.SetNX:
		gated, _ = script(scripts.GatedSetNX, c.Key, guardOf(c), c.Value, bound(c.NotAfter))
	case protocol.GetSet:
		gated, _ = script(scripts.GatedGetSet, c.Key, guardOf(c), c.Value, bound(c.NotAfter))
	case protocol.CompareSet:
		gated, _ = script(scripts.GatedCompareSet, c.Key, c.Old, c.Value, bound(c.NotAfter))
	default:
		return gated, false
	}
	return gated, true
}

// streak names the key of the streak, or the lock's own key in its place, as fence does for the counter.
func streak(c protocol.Command) (key string, after, gap int64) {
	if c.Streak == "" {
		return c.Key, 0, 0
	}
	return c.Streak, c.YieldAfter.Milliseconds(), c.Gap.Milliseconds()
}

// lineOf names the queue, or the lock's own key in its place.
func lineOf(c protocol.Command) string {
	if c.Queue == "" {
		return c.Key
	}
	return c.Queue
}

// guardOf names the guard that a command of the old scheme has to respect; without one a key that
// never exists stands in its place.
func guardOf(c protocol.Command) string {
	if c.Guard == "" {
		return protocol.Beside(c.Key, ":none")
	}
	return c.Guard
}

func graceMS(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func bound(t protocol.Instant) int64 { return int64(t) / int64(time.Millisecond) }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// word boxes the words that bridge scripts know without allocating.
func word(s string) any {
	switch s {
	case "ms":
		return "ms"
	case "plain":
		return "plain"
	default:
		return s
	}
}

// numbers keeps boxes of the numbers that commands carry again and again, which come from options; a number
// that finds its place taken by another is boxed for this once, and has the place from then on.
var numbers [64]atomic.Pointer[boxed]

type boxed struct {
	n   int64
	box any
}

// number boxes a number, mostly without allocating.
func number(n int64) any {
	place := &numbers[uint64(n)*0x9e3779b97f4a7c15>>58]
	if b := place.Load(); b != nil && b.n == n {
		return b.box
	}
	b := &boxed{n, n}
	place.Store(b)
	return b.box
}
