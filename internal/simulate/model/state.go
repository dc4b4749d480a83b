package model

import "encoding/binary"

// AppendState writes what tells this session from another of the same client.
func (s *Session) AppendState(b []byte) []byte {
	left := byte(0)
	if s.entryLeft {
		left = 1
	}
	b = append(b, byte(s.Phase), byte(s.running), byte(s.sent.Op), left)
	b = binary.AppendUvarint(b, uint64(s.Turn))
	b = binary.AppendVarint(b, int64(s.Expiry))
	b = binary.AppendVarint(b, s.Fence)
	if s.Bounded() {
		b = binary.AppendVarint(b, int64(s.Deadline))
		b = binary.AppendVarint(b, int64(s.asked))
		if s.running == runsLegacyRenew {
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
	if s.running == noMachine {
		return b
	}
	b = s.machine().AppendState(b)
	if s.running == runsBridgeAcquire {
		b = append(b, byte(s.puts))
	}
	if s.running == runsModernAcquire {
		b = binary.AppendVarint(b, int64(s.patience))
	}
	return b
}
