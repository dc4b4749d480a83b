package traffic

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Command is one command that a server ran.
type Command struct {
	At    protocol.Instant // on the server's clock, in whole microseconds
	DB    int
	Addr  string   // host:port, unix:/path, or "lua" within a script
	Words []string // the command, in capitals, and its arguments as they were sent
	Cut   bool     // not all of its words are here, or not all of the last one
	// Script is the script that this command runs, or that sent it. It is nil for what a client sends itself, and for what a script
	// sends that began before the stream.
	Script *Script
}

// InScript tells that a script sent the command.
func (c *Command) InScript() bool { return c.Addr == "lua" }

// Client is the address of the client that sent the command, itself or by a script; empty where that is not known.
func (c *Command) Client() string {
	switch {
	case !c.InScript():
		return c.Addr
	case c.Script != nil:
		return c.Script.Client
	}
	return ""
}

// ErrUnread is a line of MONITOR that cannot be read.
var ErrUnread = errors.New("a line of MONITOR that cannot be read")

// MaxWords is how many words are kept of one command. A lock's command has a handful of words, an MSET a million.
const MaxWords = 1024

// Parse reads a line such as
//
//	1700000000.123456 [0 127.0.0.1:50000] "SETNX" "lock:a" "1700000030124"
//
// with or without the + and CR of the protocol. Words is reused between calls. Arguments beyond
// MaxWords are left out.
func (c *Command) Parse(text string) error {
	text = strings.TrimPrefix(strings.TrimRight(text, "\r\n"), "+")
	seconds, rest, ok1 := strings.Cut(text, ".")
	micros, rest, ok2 := strings.Cut(rest, " [")
	if !ok1 || !ok2 || len(micros) != 6 || len(seconds) > 10 {
		return ErrUnread
	}
	s, err1 := strconv.ParseUint(seconds, 10, 33)
	us, err2 := strconv.ParseUint(micros, 10, 32)
	db, rest, ok3 := strings.Cut(rest, " ")
	n, err3 := strconv.ParseUint(db, 10, 31)
	end := strings.Index(rest, `] "`)
	if err1 != nil || err2 != nil || err3 != nil || !ok3 || end <= 0 {
		return ErrUnread
	}
	c.At = protocol.Instant(s)*protocol.Instant(time.Second) + protocol.Instant(us)*protocol.Instant(time.Microsecond)
	c.DB, c.Addr, c.Cut = int(n), rest[:end], false
	return c.words(rest[end+2:])
}

// words reads quoted strings. The server writes them by sdscatrepr: as Go does, with \x for each byte that is no ASCII. A word without an
// escape shares the line's memory.
func (c *Command) words(text string) error {
	c.Words = c.Words[:0]
	for text != "" {
		word, rest, ok := strings.Cut(text[1:], `"`)
		if text[0] != '"' || !ok {
			return ErrUnread
		}
		if strings.Contains(word, `\`) {
			quoted, err1 := strconv.QuotedPrefix(text)
			unquoted, err2 := strconv.Unquote(quoted)
			if err1 != nil || err2 != nil {
				return ErrUnread
			}
			word, rest = unquoted, text[len(quoted):]
		}
		if c.Cut = len(c.Words) == MaxWords; !c.Cut {
			c.Words = append(c.Words, word)
		}
		if rest != "" && (rest[0] != ' ' || len(rest) < 2) {
			return ErrUnread
		}
		text = strings.TrimPrefix(rest, " ")
	}
	if len(c.Words) == 0 || c.Words[0] == "" {
		return ErrUnread
	}
	c.Words[0] = strings.ToUpper(c.Words[0])
	return nil
}
