package traffic

import (
	"slices"
	"strconv"

	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
)

// Script is one call of a server script.
type Script struct {
	Client string // the address of who called it
	Name   string // the file of this project, else empty
	// Earlier is the file of an earlier build, where Name is empty. Its arguments and replies may be others than today's.
	Earlier string
	Words   []string
	keys    int
}

// RunsScript tells a command, in capitals, that runs a script.
func RunsScript(command string) bool { return calls[command] }

var calls = set(`EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO`)

// scriptIn reads the command that calls a script.
func scriptIn(c *Command) *Script {
	s := &Script{Client: c.Addr, Words: slices.Clone(c.Words)}
	if len(s.Words) >= 3 {
		if s.Name = scripts.NameOf(s.Words[1]); s.Name == "" {
			s.Earlier = scripts.Earlier(s.Words[1])
		}
		s.keys, _ = strconv.Atoi(s.Words[2])
		s.keys = max(0, min(s.keys, len(s.Words)-3))
	}
	return s
}

// Keys are the keys that the call names.
func (s *Script) Keys() []string { return s.from(3)[:s.keys] }

// Args are what the call gives beside the keys.
func (s *Script) Args() []string { return s.from(3 + s.keys) }

func (s *Script) from(n int) []string { return s.Words[min(n, len(s.Words)):] }

// Scripts tells which script the commands of "lua" belong to. Each source uses it; so does who makes commands himself.
type Scripts struct{ last *Script }

// Attribute sets the Script of the next command.
func (s *Scripts) Attribute(c *Command) {
	switch c.Script = nil; {
	case c.InScript():
		c.Script = s.last
	case RunsScript(c.Words[0]):
		s.last = scriptIn(c)
		c.Script = s.last
	}
}
