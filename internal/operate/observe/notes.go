package observe

import (
	"fmt"
	"slices"
	"sync"
)

// mostNotes is how many notes are remembered.
const mostNotes = 20

// notes are what went wrong, each text once. They are safe for concurrent use.
type notes struct {
	mu    sync.Mutex
	texts []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text := fmt.Sprintf(format, args...); !slices.Contains(n.texts, text) && len(n.texts) < mostNotes {
		n.texts = append(n.texts, text)
	}
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.texts)
}
