package observe

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// Line is one command that a server ran.
type Line struct {
	At    protocol.Instant // on the server's clock, in whole microseconds
	DB    int
	Addr  string   // host:port, unix:/path, or "lua" within a script
	Words []string // the command, in capitals, and its arguments as they were sent
}

// Lua tells that a script sent the command.
func (l *Line) Lua() bool { return l.Addr == "lua" }

var errLine = errors.New("not a line of MONITOR")

// MaxWords is how many words are kept of one command. A lock's command has a handful of words, an MSET a million.
const MaxWords = 64

// Parse reads a line such as
//
//	1700000000.123456 [0 127.0.0.1:50000] "SETNX" "lock:a" "1700000030124"
//
// with or without the + and CR of the protocol. Words is reused between calls. Arguments beyond the 64th
// are left out.
func (l *Line) Parse(text string) error {
	text = strings.TrimPrefix(strings.TrimRight(text, "\r\n"), "+")
	seconds, rest, ok1 := strings.Cut(text, ".")
	micros, rest, ok2 := strings.Cut(rest, " [")
	if !ok1 || !ok2 || len(micros) != 6 || len(seconds) > 10 {
		return errLine
	}
	s, err1 := strconv.ParseUint(seconds, 10, 33)
	us, err2 := strconv.ParseUint(micros, 10, 32)
	db, rest, ok3 := strings.Cut(rest, " ")
	n, err3 := strconv.ParseUint(db, 10, 31)
	end := strings.Index(rest, `] "`)
	if err1 != nil || err2 != nil || err3 != nil || !ok3 || end <= 0 {
		return errLine
	}
	l.At = protocol.Instant(s)*protocol.Instant(time.Second) + protocol.Instant(us)*protocol.Instant(time.Microsecond)
	l.DB, l.Addr = int(n), rest[:end]
	return l.words(rest[end+2:])
}

// words reads quoted strings. The server writes them by sdscatrepr: as Go does, with \x for each byte that is no ASCII. A word without an
// escape shares the line's memory.
func (l *Line) words(text string) error {
	l.Words = l.Words[:0]
	for text != "" {
		word, rest, ok := strings.Cut(text[1:], `"`)
		if text[0] != '"' || !ok {
			return errLine
		}
		if strings.Contains(word, `\`) {
			quoted, err1 := strconv.QuotedPrefix(text)
			unquoted, err2 := strconv.Unquote(quoted)
			if err1 != nil || err2 != nil {
				return errLine
			}
			word, rest = unquoted, text[len(quoted):]
		}
		if len(l.Words) < MaxWords {
			l.Words = append(l.Words, word)
		}
		if rest != "" && (rest[0] != ' ' || len(rest) < 2) {
			return errLine
		}
		text = strings.TrimPrefix(rest, " ")
	}
	if len(l.Words) == 0 || l.Words[0] == "" {
		return errLine
	}
	l.Words[0] = strings.ToUpper(l.Words[0])
	return nil
}

// hostOf returns the host of an address: what is the same for all connections of one machine.
func hostOf(addr string) string {
	if strings.HasPrefix(addr, "unix:") {
		return addr
	}
	if i := strings.LastIndexByte(addr, ':'); i > 0 {
		return strings.Trim(addr[:i], "[]")
	}
	return addr
}
