package model

import (
	"strconv"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

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
