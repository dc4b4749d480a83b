package wire

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// scriptOf are the scripts that commands stand for.
var scriptOf = [...]*scripts.Script{
	protocol.CompareDel: scripts.CompareDel,
	protocol.CompareSet: scripts.CompareSet,

	protocol.Take:         scripts.ModernTake,
	protocol.Extend:       scripts.ModernExtend,
	protocol.Queue:        scripts.ModernQueue,
	protocol.QueueRelease: scripts.ModernRelease,

	protocol.RedissonTake:    scripts.RedissonTake,
	protocol.RedissonExtend:  scripts.RedissonExtend,
	protocol.RedissonRelease: scripts.RedissonRelease,

	protocol.BridgeTake:   scripts.BridgeAcquire,
	protocol.BridgeSettle: scripts.BridgeSettle,
	protocol.BridgeExtend: scripts.BridgeRenew,
	protocol.BridgeDrop:   scripts.BridgeRelease,

	protocol.SidecarTake: scripts.SidecarTake,
	protocol.SidecarGet:  scripts.SidecarGet,
	protocol.SidecarDel:  scripts.SidecarDel,
	protocol.SidecarKeep: scripts.SidecarKeep,
}

// gatedOf are the scripts of commands of the old scheme that carry a bound: what writes has to check the bound where it writes.
var gatedOf = [...]*scripts.Script{
	protocol.SetNX:      scripts.GatedWrite,
	protocol.GetSet:     scripts.GatedWrite,
	protocol.Commit:     scripts.GatedWrite,
	protocol.CompareSet: scripts.GatedCompareSet,
}

func init() { // the headers are embedded: one that does not fit is a programming error
	sample := protocol.Command{Key: "key"} // names beside an empty key need the table of all slots: 10 ms of each program's start
	for _, list := range [][]*scripts.Script{scriptOf[:], gatedOf[:]} {
		for _, s := range list {
			if s == nil {
				continue
			}
			if n := 2 + len(s.Keys) + len(s.Args); n > len(Request{}.args) {
				panic(fmt.Sprintf("wire: %s has %d keys and arguments, a Request has room for %d", s.Name, n-2, len(Request{}.args)-2))
			}
			for _, a := range slices.Concat(s.Keys, s.Args, s.Words) {
				if argument(&sample, "", a.Name) == nil {
					panic(fmt.Sprintf("wire: %s has an argument %s, which no command has", s.Name, a.Name))
				}
			}
		}
	}
}

// script returns the script that a command stands for, nil where it is a plain command.
func script(c *protocol.Command) *scripts.Script {
	if c.NotAfter != 0 && int(c.Op) < len(gatedOf) && gatedOf[c.Op] != nil {
		return gatedOf[c.Op]
	}
	if int(c.Op) < len(scriptOf) {
		return scriptOf[c.Op]
	}
	return nil
}

// call fills in the keys and arguments of a script as its header names them.
func (r *Request) call(s *scripts.Script, c *protocol.Command) {
	r.Name, r.Script, r.n = "EVALSHA", s, 2
	var key any = c.Key // boxed once for all its places
	r.fill(s.Keys, c, key, key)
	r.args[0], r.args[1] = s.ByDigest, r.n-2
	r.fill(s.Args, c, key, "")
	if s.Words != nil {
		r.args[r.n] = Words(s, c)
		r.n++
	}
	r.AnswerLast = c.Wanted
}

// fill adds values, without those at the end that may be left out and are zero or empty.
func (r *Request) fill(list []scripts.Argument, c *protocol.Command, key, empty any) {
	end := r.n
	for _, a := range list {
		v := argument(c, key, a.Name)
		r.args[r.n] = v
		r.n++
		if !a.Optional || v != empty && v != zero {
			end = r.n
		}
	}
	clear(r.args[end:r.n])
	r.n = end
}

var zero any = int64(0)

// argument is the value of a key or an argument with that name; nil where no command has one. A key that is not wanted is
// the lock's own key: every key of a script must be in one slot.
func argument(c *protocol.Command, key any, name string) any {
	switch name {
	case "key":
		return key
	case "guard":
		if c.Guard == "" { // a key that never exists
			return protocol.Beside(c.Key, ":none")
		}
		return c.Guard
	case "fence":
		return wanted(c.Fence, key)
	case "yield":
		return wanted(c.Yield, key)
	case "queue":
		return wanted(c.Queue, key)
	case "state":
		if c.Share == 0 {
			return wanted(c.Yield, key)
		}
		return protocol.ShareKey(c.Key)
	case "value", "token", "holder":
		return c.Value
	case "old":
		return c.Old
	case "command":
		return written(c.Op)
	case "ttl":
		return milliseconds(c.TTL)
	case "fence_ttl":
		if c.Fence == "" {
			return zero
		}
		return milliseconds(c.FenceTTL)
	case "not_after":
		return milliseconds(time.Duration(c.NotAfter))
	case "channel":
		return c.Channel
	case "entry":
		if c.Op != protocol.Queue && (c.Op != protocol.QueueRelease || c.Channel == "") {
			return c.Entry
		}
		return c.TokenEntry()
	case "queue_ttl":
		if c.Op == protocol.BridgeTake && c.Entry == "" {
			return zero
		}
		return milliseconds(c.QueueTTL)
	case "queues":
		return flag(c.Queues)
	case "share":
		return milliseconds(c.Share)
	case "grace":
		return number(grace(c.Grace))
	case "unit":
		return c.Unit.String()
	case "layout":
		return c.Layout.String()
	case "rules":
		return rulesOf(c)
	case "gap":
		if c.Yield == "" {
			return zero
		}
		return milliseconds(c.Gap)
	case "stood":
		return c.Stood
	case "hand":
		return flag(c.Hand)
	case "held":
		return c.Held.Milliseconds() // of its own each time: no box is kept
	case "behind":
		return number(int64(c.Behind))
	case "breath":
		return milliseconds(c.Breath)
	case "record":
		return wanted(c.Record, key)
	case "claim":
		return milliseconds(c.Claim)
	default:
		return sidecarArgument(c.Sidecar, name)
	}
}

// written is the command of the old scheme that gated_write.lua runs.
func written(op protocol.Op) any {
	switch op {
	case protocol.SetNX:
		return "SETNX"
	case protocol.GetSet:
		return "GETSET"
	default:
		return "SET"
	}
}

// Words is the packed argument of a command whose script has one.
func Words(s *scripts.Script, c *protocol.Command) string {
	return s.Pack(func(name string) any { return argument(c, "", name) })
}

// sidecarArgument is argument for what only a sidecar's commands carry.
func sidecarArgument(c *protocol.SidecarCall, name string) any {
	if c == nil {
		c = &protocol.SidecarCall{}
	}
	switch name {
	case "name":
		return c.Name
	case "shape":
		return string(c.Form)
	case "far":
		return c.Far
	case "host":
		return milliseconds(time.Duration(c.Now))
	case "ends":
		return milliseconds(time.Duration(c.Until))
	case "own_unit":
		return c.Unit.String()
	case "own_layout":
		return c.Layout.String()
	case "settle":
		return milliseconds(c.Settle)
	case "free":
		return flag(c.Free)
	case "written":
		return c.Text
	default:
		return nil
	}
}

// rules is what commands of one locker say about their fleet again and again.
type rules struct {
	grace, gap time.Duration
	unit       protocol.Unit
	layout     protocol.Layout
}

type boxedRules struct {
	rules
	box any
}

var lastRules atomic.Pointer[boxedRules]

// rulesOf is the argument of bridge_acquire.lua and bridge_settle.lua with that name, mostly without allocating.
func rulesOf(c *protocol.Command) any {
	r := rules{c.Grace, c.Gap, c.Unit, c.Layout}
	if c.Yield == "" {
		r.gap = 0
	}
	last := lastRules.Load()
	if last == nil || last.rules != r {
		last = &boxedRules{r, fmt.Sprintf("%d %s %s %d", grace(r.grace), r.unit, r.layout, r.gap.Milliseconds())}
		lastRules.Store(last)
	}
	return last.box
}

// grace is in whole milliseconds, rounded up: by less, a live value would be taken for expired. Negative: never.
func grace(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return (d + time.Millisecond - 1).Milliseconds()
}

func wanted(name string, key any) any {
	if name == "" {
		return key
	}
	return name
}

func flag(b bool) any {
	if b {
		return number(1)
	}
	return zero
}

func milliseconds(d time.Duration) any { return number(d.Milliseconds()) }

// numbers keeps boxes of the numbers that commands carry again and again, which come from options; a number
// that finds its place taken by another is boxed for this once, and has the place from then on.
var numbers [64]atomic.Pointer[boxed]

type boxed struct {
	n   int64
	box any
}

// number boxes a number, mostly without allocating.
func number(n int64) any {
	if n == 0 {
		return zero
	}
	place := &numbers[uint64(n)*0x9e3779b97f4a7c15>>58]
	if b := place.Load(); b != nil && b.n == n {
		return b.box
	}
	b := &boxed{n, n}
	place.Store(b)
	return b.box
}
