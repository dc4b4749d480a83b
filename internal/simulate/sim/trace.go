package sim

import (
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// RecordKind says what happened.
type RecordKind uint8

const (
	Wants     RecordKind = iota // a client begins to want the lock
	Executes                    // a command runs at the server
	Concludes                   // a machine reaches its verdict
	Enters                      // a client is inside
	Leaves                      // ... and is not any more
	Overlaps                    // it was not alone
	Endangers                   // a hazard
	Strikes                     // a fault
)

// Record is one line of a trace.
type Record struct {
	At      protocol.Instant // true time
	Kind    RecordKind
	Client  int32 // -1 is the server
	Other   int32
	Hazard  Hazard
	Verdict protocol.Verdict
	Command protocol.Command
	Reply   protocol.Reply
	Key     model.Entry      // Executes: what the key holds afterwards, if it is there; Enters: the key's name alone
	Error   time.Duration    // how far the client's wall clock is ahead
	Lease   protocol.Instant // Enters: the true time at which the lease is over
	Cause   Cause            // Overlaps: why the first holder had lost its lock
	Fault   *Fault
}

// note passes a record on, and into the hash.
func (w *World) note(r Record) {
	w.mix(uint64(w.now)<<8 ^ uint64(r.Kind)<<4 ^ uint64(uint8(r.Client)))
	w.mix(uint64(r.Hazard)<<16 ^ uint64(r.Verdict)<<8 ^ uint64(uint8(r.Other)))
	if w.Trace != nil {
		w.emit(r)
	}
}

func (w *World) emit(r Record) {
	r.At = w.now
	if r.Client >= 0 {
		r.Error = w.members[r.Client].clock.Error(w.now)
	}
	w.record = r
	w.Trace(&w.record)
}

func (w *World) noteCommand(m *member, f *flight, reply *protocol.Reply) {
	room := &w.rooms[f.room]
	key, _ := room.store.Look(w.clock.Read(w.now).Wall, room.key)
	w.emit(Record{Kind: Executes, Client: m.number, Command: f.command, Reply: *reply, Key: key})
}

// hashCommand mixes a command and its reply into the trace's hash.
func (w *World) hashCommand(f *flight, reply *protocol.Reply) {
	w.mix(uint64(w.now)<<16 ^ uint64(f.client)<<8 ^ uint64(f.command.Op))
	w.mix(uint64(reply.Int)<<8 ^ uint64(reply.Kind))
	w.mixText(f.command.Value)
	w.mixText(reply.Text)
}

func (w *World) mix(x uint64) {
	h := (w.hash ^ x) * 0x9e3779b97f4a7c15
	w.hash = h ^ h>>29
}

func (w *World) mixText(s string) {
	var x uint64
	for i := 0; i < len(s); i++ {
		x = x<<7 ^ x>>57 ^ uint64(s[i])
	}
	w.mix(x<<8 ^ uint64(len(s)))
}
