package census

import (
	"bytes"
	"fmt"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// companion tells a key that accompanies a lock: it is listed as a part of it, not as a lock.
func companion(name []byte) (Finding, bool) {
	if bytes.HasPrefix(name, []byte("redisson_unlock_latch:")) {
		return beside("remembers the answer of a Redisson unlock"), true
	}
	key, role, ok := protocol.Owner(name)
	if !ok {
		return Finding{}, false
	}
	return beside(fmt.Sprintf("%s of %.120q", role, key)), true
}

func beside(note string) Finding {
	return Finding{Format: UnknownFormat, State: UnknownState, Beside: true, Note: note}
}
