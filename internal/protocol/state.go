package protocol

import (
	"encoding/binary"
	"time"
)

// This file lets a search tell two machines apart: AppendState writes what a run has changed in a
// machine. Two machines of one configuration with equal state behave alike from here on. The
// configuration itself is left out: a search never compares machines of different clients.

// AppendState implements the explorer's view of the machine.
func (a *LegacyAcquire) AppendState(b []byte) []byte {
	b = append(b, byte(a.at), flags(a.found, a.foreign, a.retried))
	b = appendTimes(b, a.Patience, time.Duration(a.began), time.Duration(a.expiry))
	return appendTexts(b, a.Owner, a.written, a.read)
}

// AppendState implements the explorer's view of the machine.
func (r *LegacyRelease) AppendState(b []byte) []byte {
	b = append(b, byte(r.at), flags(r.retried, r.second, r.Again, r.OnItsWay))
	b = appendTimes(b, time.Duration(r.Expiry))
	return appendTexts(b, r.Value, r.Pending)
}

// AppendState implements the explorer's view of the machine.
func (r *LegacyRenew) AppendState(b []byte) []byte {
	b = append(b, byte(r.at))
	b = appendTimes(b, time.Duration(r.expiry), time.Duration(r.ValueExpiry), time.Duration(r.PendingExpiry))
	return appendTexts(b, r.Owner, r.Value, r.Pending, r.next)
}

// AppendState implements the explorer's view of the machine.
func (a *ModernAcquire) AppendState(b []byte) []byte {
	b = append(b, byte(a.at))
	b = appendTimes(b, time.Duration(a.sent), time.Duration(a.fence), a.left)
	return appendTexts(b, a.Token)
}

// AppendState implements the explorer's view of the machine.
func (q *ModernQueue) AppendState(b []byte) []byte {
	b = append(b, byte(q.at), byte(q.silences), flags(q.handed, q.entryLeft))
	b = appendTimes(b, time.Duration(q.asked), time.Duration(q.queued), time.Duration(q.deadline))
	b = appendTimes(b, time.Duration(q.fence), q.left, time.Duration(q.before), time.Duration(q.ticket))
	return appendTexts(b, q.Token)
}

// AppendState implements the explorer's view of the machine.
func (r *ModernRenew) AppendState(b []byte) []byte {
	b = append(b, byte(r.at))
	b = appendTimes(b, time.Duration(r.sent))
	return appendTexts(b, r.Token, r.seen)
}

// AppendState implements the explorer's view of the machine.
func (r *ModernRelease) AppendState(b []byte) []byte {
	b = append(b, byte(r.at), flags(r.Entry, r.Held, r.Wanted, r.Queue == ""))
	return appendTexts(b, r.Token)
}

// AppendState implements the explorer's view of the machine.
func (a *BridgeAcquire) AppendState(b []byte) []byte {
	b = append(b, byte(a.at), flags(a.again, a.took, a.bare, a.doubt, a.handed), byte(a.settles), byte(a.verdict))
	b = appendTimes(b, min(a.Patience, time.Minute), // more is as good as no end, and a waiter that is woken often would count it down
		time.Duration(a.sent), time.Duration(a.won), time.Duration(a.fence), a.wait,
		time.Duration(a.before), time.Duration(a.ticket), time.Duration(a.queued))
	return appendTexts(b, a.Value, a.seen, a.entry, a.stood)
}

// AppendState implements the explorer's view of the machine.
func (r *BridgeRenew) AppendState(b []byte) []byte {
	b = append(b, flags(r.asked, r.again))
	b = appendTimes(b, time.Duration(r.sent))
	return appendTexts(b, r.Value, r.seen)
}

// AppendState implements the explorer's view of the machine.
func (r *BridgeRelease) AppendState(b []byte) []byte {
	b = append(b, flags(r.asked, r.again, r.bare, r.told, r.clears))
	b = appendTimes(b, time.Duration(r.Taken), r.held)
	return appendTexts(b, r.Value, r.seen, r.Entry, r.Stood)
}

func flags(bits ...bool) byte {
	var f byte
	for i, bit := range bits {
		if bit {
			f |= 1 << i
		}
	}
	return f
}

func appendTimes(b []byte, times ...time.Duration) []byte {
	for _, t := range times {
		b = binary.AppendVarint(b, int64(t))
	}
	return b
}

func appendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
