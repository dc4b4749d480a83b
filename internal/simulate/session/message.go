package session

import (
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// ReadMessage reads what a script publishes: "<token> <ticket> <fence>", a grant; anything else only wakes up, and
// begins with whom.
func ReadMessage(text string) (token string, reply protocol.Reply) {
	token, rest, _ := strings.Cut(text, " ")
	first, second, ok := strings.Cut(rest, " ")
	if !ok {
		return token, protocol.Reply{Kind: protocol.Woke}
	}
	ticket, _ := strconv.ParseInt(first, 10, 64)
	fence, _ := strconv.ParseInt(second, 10, 64)
	return token, protocol.Reply{Kind: protocol.Granted, Int: fence, Int2: ticket}
}
