package model

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// AppendState writes what tells this session from another of the same client.
func (s *Session) AppendState(b []byte) []byte {
	b = append(b, byte(s.Phase), byte(s.sent.Op), bit(s.entryLeft))
	b = binary.AppendUvarint(b, uint64(s.Turn))
	b = binary.AppendVarint(b, int64(s.Expiry))
	b = binary.AppendVarint(b, s.Fence)
	if s.Bounded() {
		b = binary.AppendVarint(b, int64(s.Deadline))
		b = binary.AppendVarint(b, int64(s.asked))
		if _, ok := s.machine.(*protocol.LegacyRenew); ok {
			b = binary.AppendVarint(b, int64(s.began))
		}
	}
	b = append(b, byte(len(s.Value)))
	b = append(b, s.Value...)
	b = append(b, byte(len(s.pending)))
	b = append(b, s.pending...)
	b = binary.AppendVarint(b, int64(s.pendingExpiry))
	b = binary.AppendVarint(b, s.drew)
	b = append(b, bit(s.doubled))
	if s.asks {
		b = append(append(b, s.held.Value...), 0)
	}
	if s.machine == nil {
		return append(b, 0)
	}
	b = append(b, numberOf(s.machine))
	switch m := s.machine.(type) {
	case *protocol.BridgeAcquire:
		a := *m
		a.Patience = min(a.Patience, time.Minute) // more is as good as no end, and a waiter that is woken often would count it down
		return appendFields(append(b, byte(s.puts)), reflect.ValueOf(a))
	case *protocol.ModernAcquire:
		b = binary.AppendVarint(b, int64(s.patience))
	}
	return appendFields(b, reflect.ValueOf(s.machine).Elem())
}

// machines are those that a session runs.
var machines = []reflect.Type{
	reflect.TypeFor[*keeper](), reflect.TypeFor[*protocol.LegacyAcquire](), reflect.TypeFor[*protocol.LegacyRenew](), reflect.TypeFor[*protocol.LegacyRelease](),
	reflect.TypeFor[*protocol.BridgeAcquire](), reflect.TypeFor[*protocol.BridgeRenew](), reflect.TypeFor[*protocol.BridgeRelease](),
	reflect.TypeFor[*protocol.ModernAcquire](), reflect.TypeFor[*protocol.ModernQueue](), reflect.TypeFor[*protocol.ModernRenew](), reflect.TypeFor[*protocol.ModernRelease](),
}

// numberOf tells a machine from the others, from 1: the fields of two may look alike.
func numberOf(m protocol.Machine) byte {
	i := slices.Index(machines, reflect.TypeOf(m))
	if i < 0 {
		panic(fmt.Sprintf("model: %T is in no list of machines: a search would take it for another one", m))
	}
	return byte(i + 1)
}

// appendFields writes the fields of a machine, so that none is forgotten: a search would take two different states for one.
func appendFields(b []byte, machine reflect.Value) []byte {
	for i := range machine.NumField() {
		switch f := machine.Field(i); f.Kind() {
		case reflect.Bool:
			b = append(b, bit(f.Bool()))
		case reflect.String:
			b = append(binary.AppendUvarint(b, uint64(f.Len())), f.String()...)
		case reflect.Uint8:
			b = append(b, byte(f.Uint()))
		case reflect.Int, reflect.Int64:
			b = binary.AppendVarint(b, f.Int())
		case reflect.Struct:
			b = appendFields(b, f)
		case reflect.Pointer: // its configuration, the same for all machines of a client
		default:
			panic("no state is written of a field " + machine.Type().Field(i).Name)
		}
	}
	return b
}
