package sim

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Line is one line of a run's story: true time, what happened, and what was on the wire. It is empty where there is nothing to tell.
func (f *Fleet) Line(r *Record) string {
	said := f.Sentence(r)
	if said == "" {
		return ""
	}
	line := fmt.Sprintf("%4d.%06ds  %s", int64(r.At)/1e9, int64(r.At)/1e3%1e6, said)
	if r.Kind == Executes {
		line += "  [" + r.Wire() + "]"
	}
	return line
}

// Wire is a command and its reply.
func (r *Record) Wire() string {
	reply := model.SayReply(&r.Reply)
	if said := codes[r.Command.Op][r.Reply.Int]; r.Reply.Kind == protocol.Integer && said != "" {
		reply = strings.TrimRight(said+" "+r.Reply.Text, " ")
	}
	return model.SayCommand(&r.Command) + " -> " + reply
}

// Name is a client's name; -1 is the server.
func (f *Fleet) Name(client int) string {
	if client < 0 {
		return "server"
	}
	return f.Clients[client].Name
}

func round(d time.Duration) time.Duration {
	if d.Abs() >= time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// codes are the answers of the bridge's scripts in words.
var codes = map[protocol.Op]map[int64]string{
	protocol.BridgeTake: {
		protocol.TakeFree: "taken, it was free", protocol.TakeOver: "taken over from", protocol.TakeMine: "ours already",
		protocol.TakeHeld: "held by", protocol.TakeForeign: "foreign:", protocol.TakeRefused: "a ghost:",
	},
	protocol.BridgeSettle: {
		protocol.SettleDone: "still ours", protocol.SettleAgain: "set again", protocol.SettleLeft: "withdrawn from", protocol.SettleLost: "the guard is not ours",
	},
	protocol.BridgeExtend: {
		protocol.RenewDone: "extended", protocol.RenewRepair: "repaired", protocol.RenewTheirs: "displaced by", protocol.RenewLost: "lost",
	},
	protocol.BridgeDrop: {
		protocol.DropDone: "released", protocol.DropRepaired: "released, the key was gone",
		protocol.DropTheirs: "displaced by", protocol.DropNothing: "nothing was ours",
	},
}

// String says a fault.
func (f *Fault) String() string {
	by := f.By.String()
	switch f.Kind {
	case StepClock, SlewClock:
		by = signed(f.By)
	case DriftClock:
		by = fmt.Sprintf("%d ppm", int64(f.By))
	case Crash:
		if f.By <= 0 {
			return "crashes"
		}
	}
	return strings.ReplaceAll(faultKinds[f.Kind].says, "BY", by)
}

func signed(d time.Duration) string {
	if d > 0 {
		return "+" + d.String()
	}
	return d.String()
}

// Sentence tells one record to somebody who does not know the protocol; empty where there is nothing
// to tell.
func (f *Fleet) Sentence(r *Record) string {
	who := f.Name(int(r.Client))
	switch r.Kind {
	case Wants:
		if r.Error != 0 {
			return fmt.Sprintf("%s wants the lock; its clock is off by %s.", who, signed(round(r.Error)))
		}
		return who + " wants the lock."
	case Executes:
		return who + " " + act(f, r)
	case Enters:
		return who + " believes that it holds the lock."
	case Leaves:
		return who + " leaves the section."
	case Overlaps:
		return fmt.Sprintf("%s and %s are inside at the same time.", f.Name(int(r.Other)), who)
	case Endangers:
		return fmt.Sprintf("%s %s (%s).", who, hazards[r.Hazard].says, r.Hazard)
	case Strikes:
		return who + " " + r.Fault.String() + "."
	default:
		return ""
	}
}

// act tells a command and its reply.
func act(f *Fleet, r *Record) string {
	switch r.Command.Op {
	case protocol.SetNX:
		if r.Reply.Int == 1 {
			return "finds the key free and writes its expiry on it."
		}
		return "finds the key taken."
	case protocol.Get:
		if r.Reply.Kind == protocol.Nil {
			return "reads the key: nothing is there any more."
		}
		return "reads the expiry: by " + judged(f, r)
	}
	return cmp.Or(verbs[r.Command.Op], "sends a command") + "."
}

// verbs say what the other commands are for; the reply stands on the wire.
var verbs = map[protocol.Op]string{
	protocol.GetSet: "replaces the value by its own, and looks at what it replaced", protocol.Del: "deletes the key",
	protocol.SidecarTake: "asks for the lock", protocol.SidecarDel: "gives the lock back", protocol.SidecarKeep: "has its sidecar look after the lock",
	protocol.BridgeTake: "asks for the lock", protocol.BridgeSettle: "looks whether the lock is still its own",
	protocol.BridgeExtend: "renews", protocol.BridgeDrop: "gives the lock back",
	protocol.SetToken: "asks for the lock", protocol.Take: "asks for the lock", protocol.Queue: "asks for the lock or a place in its queue",
	protocol.Extend: "renews", protocol.QueueRelease: "gives the lock back", protocol.CompareDel: "gives the lock back",
	protocol.CompareSet: "renews",
}

// judged says what a reader's clock makes of the value, and what is true.
func judged(f *Fleet, r *Record) string {
	d := f.Clients[r.Client].Dialect
	ends, ok := d.ExpiresAt(r.Reply.Text)
	if !ok {
		return "no reading of its own dialect; it is foreign."
	}
	mine := (Epoch + r.At).Add(r.Error)
	left, truth := ends.Sub(mine), ends.Sub(Epoch+r.At)
	if left > 365*24*time.Hour {
		return "its clock a far future."
	}
	return fmt.Sprintf("its clock %s, in truth %s.", leftOf(left), leftOf(truth))
}

func leftOf(d time.Duration) string {
	if d < 0 {
		return "over for " + round(-d).String()
	}
	return round(d).String() + " are left"
}
