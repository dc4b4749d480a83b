package scripts

import (
	"strings"
	"sync"
)

// All lists every script.
func All() []*Script { return all }

var all []*Script

// NameOf returns the name of a script by its text, with or without comments, or by the digest of either, empty for none of these.
func NameOf(text string) string {
	if name := names()[text]; name != "" {
		return name
	}
	return names()[strings.ToLower(text)] // a digest may be in capitals
}

// names are of every script's text and digest, with and without comments. Few programs ask: it is made for the first one.
var names = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, s := range all {
		for _, text := range []string{s.Source, s.Bare()} {
			names[text], names[digest(text)] = s.Name, s.Name
		}
	}
	return names
})
