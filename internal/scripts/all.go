package scripts

import "strings"

// All lists every script.
func All() []*Script { return all }

var all []*Script

// NameOf returns the name of a script by its text, with or without comments, by its digest or by its name as a function, empty
// for none of these.
func NameOf(text string) string {
	if name := names[text]; name != "" {
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
	return names[strings.ToLower(text)] // a digest may be in capitals
}

var names = map[string]string{}
