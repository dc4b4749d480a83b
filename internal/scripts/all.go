package scripts

// All lists every script.
func All() []*Script { return all }

var all []*Script
