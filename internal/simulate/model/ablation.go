package model

import "github.com/lockmigrate/lockmigrate/internal/protocol"

// This file is what a bridge would be without something that it needs, or with something that it must not do. It sits between the
// shipped machine and its driver, and nothing in the machine or in a script knows of it.

// settlePutting is bridge_settle.lua as it would be if it put our value back over a live legacy value. settlePut is its reply then.
const (
	settlePutting protocol.Op = 250
	settlePut     int64       = 3
)

// Copying is a SET with a TTL and without NX: a lock is copied to another key, whatever stands there.
const Copying protocol.Op = 251

func copying(c *call) protocol.Reply {
	c.write(c.command.Key, c.command.Value, c.command.TTL.Milliseconds())
	return text("OK")
}

// acquireBridge asks the bridge's machine, with the member's ablations in place.
func (s *Session) acquireBridge(now Reading, reply protocol.Reply) protocol.Step {
	a, at := &s.bridgeAcquire, now.Mono
	if !a.Holds() { // an attempt begins
		s.puts = 0
	}
	if s.Truthful {
		if at = now.Wall; !a.Holds() {
			a.Value, _ = s.Dialect.Expiry(at, s.Lease, s.Owner)
		}
	}
	if s.sent.Op == settlePutting && reply.Kind == protocol.Integer && reply.Int == settlePut {
		s.puts++
		reply.Int = protocol.SettleAgain
	}
	step := a.Next(at, reply)
	switch {
	case step.Kind == protocol.Send && step.Command.Op == protocol.BridgeSettle && s.puts < s.PutBacks:
		step.Command.Op = settlePutting
	case step.Kind == protocol.Sleep && a.Holds() && s.Settle == 0:
		step = protocol.Step{Kind: protocol.Done, Verdict: protocol.Acquired}
	}
	return step
}
