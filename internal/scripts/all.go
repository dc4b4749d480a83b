package scripts

import (
	"strings"
	"sync"
)

// All lists every script.
func All() []*Script { return all }

var all []*Script

// NameOf returns the name of a script by its text, with or without comments, by its digest or by its name as a function, empty
// for none of these.
func NameOf(text string) string {
	if name := names()[text]; name != "" {
		return name
	}
	if function, ok := strings.CutPrefix(text, functionPrefix); ok && len(text) < 100 {
		function = function[:max(0, strings.LastIndexByte(function, '_'))] + ".lua"
		for _, s := range all {
			if s.Name == function {
				return function
			}
		}
	}
	return names()[strings.ToLower(text)] // a digest may be in capitals
}

// names are of every script's digest and text, with and without comments. Few programs ask: it is made for the first one.
var names = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, s := range all {
		names[s.Digest], names[s.Source], names[s.Bare()] = s.Name, s.Name, s.Name
	}
	return names
})
