package session

import "encoding/binary"

// AppendState writes what tells this session from another of the same client.
func (s *Session) AppendState(b []byte) []byte {
	holds := s.holds
	if s.stands {
		holds |= 1 << 7
	}
	b = append(b, byte(s.Phase), byte(s.running), byte(s.sent.Op), holds)
	b = binary.AppendUvarint(b, uint64(s.Turn))
	b = binary.AppendVarint(b, int64(s.Expiry))
	b = binary.AppendVarint(b, s.Fence)
	if s.Bounded() {
		b = binary.AppendVarint(b, int64(s.Deadline))
		b = binary.AppendVarint(b, int64(s.asked))
		if s.running == legacyRenew {
			b = binary.AppendVarint(b, int64(s.began))
		}
	}
	b = append(b, byte(len(s.Value)))
	b = append(b, s.Value...)
	b = append(b, byte(len(s.pending)))
	b = append(b, s.pending...)
	b = binary.AppendVarint(b, int64(s.pendingExpiry))
	b = binary.AppendVarint(b, s.drew)
	if s.asks {
		b = append(append(b, s.held.Value...), 0)
	}
	switch s.running {
	case legacyAcquire:
		b = s.legacyAcquire.AppendState(b)
	case legacyRenew:
		b = s.legacyRenew.AppendState(b)
	case legacyRelease:
		b = s.legacyRelease.AppendState(b)
	case bridgeAcquire:
		b = s.bridgeAcquire.AppendState(b)
	case bridgeRenew:
		b = s.bridgeRenew.AppendState(b)
	case bridgeRelease:
		b = s.bridgeRelease.AppendState(b)
	case modernAcquire:
		b = binary.AppendVarint(s.modernAcquire.AppendState(b), int64(s.patience))
	case modernQueue:
		b = s.modernQueue.AppendState(b)
	case modernRenew:
		b = s.modernRenew.AppendState(b)
	case modernRelease:
		b = s.modernRelease.AppendState(b)
	case redissonAcquire:
		b = binary.AppendVarint(s.redissonAcquire.AppendState(b), int64(s.patience))
	case redissonRelease:
		b = s.redissonRelease.AppendState(b)
	case sidecarKeep:
		if s.keeper.asked {
			b = append(b, 1)
		}
	}
	return b
}
