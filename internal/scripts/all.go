package scripts

import (
	"strings"
	"sync"
)

// All lists every script.
func All() []*Script { return all }

var all []*Script

// NameOf returns the name of a script by its text or its digest, empty for none of these.
func NameOf(text string) string {
	if name := names[text]; name != "" {
		return name
	}
	return names[strings.ToLower(text)] // a digest may be in capitals
}

var names = map[string]string{}

// Bare returns the script's text without its comments: sidecars send it so.
func (s *Script) Bare() string {
	var code strings.Builder
	for line := range strings.Lines(s.Source) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			code.WriteString(line + "\n")
		}
	}
	return code.String()
}

// SidecarFunction begins the names of the functions that sidecars load.
const SidecarFunction = "lockmigrate_sidecar_"

// OfSidecar tells whether a sidecar calls its scripts by this text, or by this name of a function.
func OfSidecar(text string) bool { return strings.HasPrefix(text, SidecarFunction) || bare()[text] }

var bare = sync.OnceValue(func() map[string]bool {
	texts := map[string]bool{}
	for _, s := range all {
		if strings.HasPrefix(s.Name, "sidecar_") {
			texts[s.Bare()] = true
		}
	}
	return texts
})
