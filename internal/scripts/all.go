package scripts

import "strings"

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
