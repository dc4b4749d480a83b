package observe

import (
	"slices"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// script is the running or last script.
type script struct {
	caller *client
	name   string // the file of ours, else empty
	at     protocol.Instant
	words  []string
	keys   int
}

// otherBridge stands for a bridge's script of another version.
const otherBridge = "bridge_other.lua"

// otherVersion knows a bridge's script of another version of this library by what it is given: the guard of its first key, and
// a bridge value. What it does then shows in its commands.
func (o *Observer) otherVersion(c *client, l *Line) {
	names := o.script.names()
	if len(names) < 2 || names[1] != protocol.GuardKey(names[0]) {
		return
	}
	for _, arg := range o.script.args() {
		if shapeOf(arg, l.At).kind != Bridge {
			continue
		}
		o.script.name = otherBridge
		if _, known := o.tokens[arg]; !known && len(o.tokens) < o.opts.MaxKeys {
			o.tokens[strings.Clone(arg)] = asker{c, Bridge}
		}
		return
	}
}

// asker is a client of ours that has asked for a lock, and what it is.
type asker struct {
	c    *client
	kind string
}

// kindOf tells what a client is that runs a script of ours.
func kindOf(script string) string {
	if strings.HasPrefix(script, "bridge_") {
		return Bridge
	}
	return Modern
}

// tokenAt are the scripts that ask for a lock: where the token is among their arguments.
var tokenAt = func() map[string]int {
	at := map[string]int{}
	for _, s := range []*scripts.Script{scripts.ModernTake, scripts.ModernQueue, scripts.BridgeAcquire} {
		at[s.Name] = slices.IndexFunc(s.Args, func(a scripts.Argument) bool { return a.Name == "token" || a.Name == "value" })
	}
	return at
}()

func (s *script) names() []string {
	if len(s.words) < 3 {
		return nil
	}
	return s.words[3 : 3+s.keys]
}

func (s *script) args() []string {
	if len(s.words) < 3 {
		return nil
	}
	return s.words[3+s.keys:]
}
