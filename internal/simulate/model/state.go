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
	if s.asks {
		b = append(append(b, s.held.Value...), 0)
	}
	switch s.running {
	case runsLegacyAcquire:
		b = s.legacyAcquire.AppendState(b)
	case runsLegacyRenew:
		b = s.legacyRenew.AppendState(b)
	case runsLegacyRelease:
		b = s.legacyRelease.AppendState(b)
	case runsBridgeAcquire:
		b = s.bridgeAcquire.AppendState(b)
	case runsBridgeRenew:
		b = s.bridgeRenew.AppendState(b)
	case runsBridgeRelease:
		b = s.bridgeRelease.AppendState(b)
	case runsModernAcquire:
		b = binary.AppendVarint(s.modernAcquire.AppendState(b), int64(s.patience))
	case runsModernQueue:
		b = s.modernQueue.AppendState(b)
	case runsModernRenew:
		b = s.modernRenew.AppendState(b)
	case runsModernRelease:
		b = s.modernRelease.AppendState(b)
	case runsRedissonAcquire:
		b = binary.AppendVarint(s.redissonAcquire.AppendState(b), int64(s.patience))
	case runsRedissonRelease:
		b = s.redissonRelease.AppendState(b)
	case runsSidecarKeep:
		if s.keeper.asked {
			b = append(b, 1)
		}
	}
	return b
}
