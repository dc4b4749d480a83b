package model

import (
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// translate is what the client's sidecar sends in place of a command.
func (s *Session) translate(now Reading, c protocol.Command) protocol.Command {
	if s.Held && c.Op == protocol.SetNX {
		s.drew++
	}
	side := protocol.Sidecar{
		Name: s.Behind, Dialect: s.Dialect, Lease: s.Lease, Legacy: s.OldStage, Alone: s.Member.Queue, Grace: s.Grace, Settle: s.Settle, Poll: s.Poll,
		Far: s.Dialect.BridgeValue(protocol.BridgeLow, s.nobody()),
	}
	host := now.Wall.Add(s.Host)
	if s.asks {
		c = side.Wait(host, c.Key, s.drawn())
		c.NotAfter = s.bound
	} else if c.Op == protocol.SidecarKeep {
		c = side.Keep(host, c.Key, true)
		c.NotAfter = s.bound
	} else {
		c = side.Translate(host, c, s.drawn(), s.bound)
	}
	if c.Sidecar != nil && s.NoGuard {
		c.Guard = s.Guard()
	}
	return c
}

func (s *Session) drawn() string { return s.Dialect.BridgeValue(s.number()+s.drew*1000, s.nobody()) }

// keeper asks once what has become of the lock. The client does not hear of it, whatever comes.
type keeper struct {
	key   string
	asked bool
}

// Next implements protocol.Machine.
func (k *keeper) Next(protocol.Instant, protocol.Reply) protocol.Step {
	if k.asked {
		return protocol.Step{Kind: protocol.Done, Verdict: protocol.Renewed}
	}
	k.asked = true
	return protocol.Step{Kind: protocol.Send, Command: protocol.Command{Op: protocol.SidecarKeep, Key: k.key}}
}
