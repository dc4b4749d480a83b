package census

import (
	"bytes"
	"strings"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// roles are the keys that accompany a lock, and how their names come from its name.
var roles = []struct {
	ending string // of the name, but for colons behind it
	role   string
	name   func(key string) string
}{
	{":guard", "the guard of ", protocol.GuardKey},
	{":fence", "the fencing counter of ", protocol.FenceKey},
	{":streak", "the streak of bridge holders of ", protocol.StreakKey},
	{":fence", "the fencing counter of ", func(key string) string { return protocol.Beside(key, ":fence") }},
	{":line", "the queue of bridge clients of ", protocol.LineKey},
	{":queue", "the queue of ", func(key string) string { return protocol.Beside(key, ":queue") }},
}

// companion tells a key that accompanies a lock: it is listed as a part of it, not as a lock.
func companion(name []byte) (Finding, bool) {
	if bytes.HasPrefix(name, []byte("redisson_unlock_latch:")) {
		return beside("remembers the answer of a Redisson unlock"), true
	}
	trimmed := bytes.TrimRight(name, ":")
	for _, r := range roles {
		if !bytes.HasSuffix(trimmed, []byte(r.ending)) {
			continue
		}
		for _, key := range lockNames(string(trimmed)) {
			if r.name(key) == string(name) {
				return beside(r.role + lockmigrate.Quote(key)), true
			}
		}
	}
	return Finding{}, false
}

func beside(note string) Finding {
	return Finding{Format: UnknownFormat, State: UnknownState, Beside: true, Note: note}
}

// lockNames returns what a lock may be called whose companion has this name: what stands before the ending,
// without the project's own part of it, without braces around it, or without a tag in front of it.
func lockNames(name string) []string {
	base := name[:strings.LastIndexByte(name, ':')]
	names := make([]string, 0, 6)
	for _, b := range []string{base, strings.TrimSuffix(base, ":lockmigrate")} {
		if strings.HasPrefix(b, "{") {
			names = append(names, strings.TrimSuffix(b[1:], "}"))
		}
		names = append(names, b)
		if _, after, found := strings.Cut(b, "}"); found {
			names = append(names, after)
		}
	}
	return names
}
