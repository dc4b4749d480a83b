package model

import (
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// SayCommand writes a command as a person would.
func SayCommand(c *protocol.Command) string {
	return strings.TrimRight(operations[c.Op].name+" "+c.Key+" "+c.Value, " ")
}

// SayReply writes a reply as a person would.
func SayReply(r *protocol.Reply) string {
	switch r.Kind {
	case protocol.Nil:
		return "nothing"
	case protocol.Integer:
		return strconv.FormatInt(r.Int, 10)
	case protocol.Fault:
		return "error " + r.Text
	case protocol.Silence:
		return "no reply"
	default:
		return r.Text
	}
}
