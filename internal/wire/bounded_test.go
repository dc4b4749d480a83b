package wire_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// TestBoundedCommandsRefuseToComeLate: the bound is what keeps a stopped process, or a delayed
// command, from acting in a stage that has ended.
func TestBoundedCommandsRefuseToComeLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		setups := map[protocol.Op]func(){
			protocol.BridgeTake:   func() {},
			protocol.BridgeSettle: func() { b.send(b.command(protocol.BridgeTake)) },
			protocol.BridgeExtend: func() { b.send(b.command(protocol.BridgeTake)) },
			protocol.SetNX:        func() {},
			protocol.GetSet:       func() { b.set("old") },
			protocol.CompareSet:   func() { b.set("old") },
			protocol.Commit:       func() { b.do("WATCH", b.key) },
		}
		for op, setup := range setups {
			for _, late := range []bool{true, false} {
				b.do("FLUSHALL")
				setup()
				before := b.s.Value(b.key)
				at := b.time().Add(time.Minute)
				if late {
					at = b.time().Add(-time.Millisecond)
					if s.Mini == nil {
						at = at.Add(-time.Millisecond)
					}
				}
				reply := b.send(b.command(op, func(c *protocol.Command) { c.NotAfter, c.Old = protocol.InstantOf(at), "old" }))
				refused := reply.Kind == protocol.Fault && strings.HasPrefix(reply.Text, "STAGE ")
				if refused != late {
					t.Errorf("op %d, late %v: %+v", op, late, reply)
				}
				if late && b.s.Value(b.key) != before {
					t.Errorf("op %d came late and still changed the key to %q", op, b.s.Value(b.key))
				}
				if !late && b.s.Value(b.key) != mine {
					t.Errorf("op %d left %q", op, b.s.Value(b.key))
				}
				if late && b.do("EXISTS", b.guard()).(int64) == 1 && op == protocol.BridgeTake {
					t.Errorf("op %d came late and still set the guard", op)
				}
			}
		}
	})
}

// TestBoundedCommandsRespectTheGuard: members of stage legacy do not come in after a stale DEL, as
// unmodified clients do.
func TestBoundedCommandsRespectTheGuard(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		bounded := func(c *protocol.Command) {
			c.NotAfter, c.Value = protocol.InstantOf(b.time().Add(time.Minute)), "legacy"
		}
		b.send(b.command(protocol.BridgeTake))
		b.do("DEL", b.key)
		if reply := b.send(b.command(protocol.SetNX, bounded)); reply.Kind != protocol.Integer || reply.Int != 0 {
			t.Errorf("SETNX beside a guard: %+v", reply)
		}
		for _, op := range []protocol.Op{protocol.GetSet, protocol.Commit} {
			if reply := b.send(b.command(op, bounded)); !strings.HasPrefix(reply.Text, "HELD ") {
				t.Errorf("op %d beside a guard: %+v", op, reply)
			}
		}
		b.want(b.send(b.command(protocol.BridgeExtend)), protocol.RenewRepair, mine, mine)
	})
}
