package model

import (
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// ReadMessage reads what a script publishes: "<ticket> <fence> <token>", a grant; "head <token>" only wakes up.
func ReadMessage(text string) (token string, reply protocol.Reply) {
	first, rest, _ := strings.Cut(text, " ")
	if first == "head" {
		return rest, protocol.Reply{Kind: protocol.Woke}
	}
	second, token, _ := strings.Cut(rest, " ")
	ticket, _ := strconv.ParseInt(first, 10, 64)
	fence, _ := strconv.ParseInt(second, 10, 64)
	return token, protocol.Reply{Kind: protocol.Granted, Int: fence, Int2: ticket}
}
