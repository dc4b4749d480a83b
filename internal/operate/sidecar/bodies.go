package sidecar

import (
	"crypto/sha1" // EVALSHA's own digest, not a protection
	"encoding/hex"
	"slices"
	"strings"
	"sync"
)

// bodies are the scripts that the service has sent, by their digest: an EVALSHA on a lock's key is sent with its text. They are bounded: what
// is not known any more gets NOSCRIPT, and its client sends the text.
type bodies struct {
	mu   sync.Mutex
	text map[string][]byte
	size int
}

const mostBodies = 4 << 20 // bytes

func (b *bodies) keep(text []byte) {
	sum := sha1.Sum(text)
	digest := hex.EncodeToString(sum[:])
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.text[digest] != nil {
		return
	}
	if b.size += len(text); b.text == nil || b.size > mostBodies {
		b.text, b.size = map[string][]byte{}, len(text)
	}
	b.text[digest] = slices.Clone(text)
}

// loaded is told of a SCRIPT command.
func (b *bodies) loaded(args [][]byte) {
	if len(args) == 3 && strings.EqualFold(string(args[1]), "LOAD") {
		b.keep(args[2])
	}
}

func (b *bodies) of(digest string) ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, ok := b.text[strings.ToLower(digest)]
	return text, ok
}
