package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// Monitor records the commands that a real server executes, until the test ends.
type Monitor struct {
	t    testing.TB
	conn redis.Conn
	s    *Server
}

// Monitor starts recording.
func (s *Server) Monitor() *Monitor {
	s.t.Helper()
	conn := s.Conn()
	if _, err := conn.Do("MONITOR"); err != nil {
		s.t.Fatalf("MONITOR: %v", err)
	}
	return &Monitor{t: s.t, conn: conn, s: s}
}

// Command is one line of MONITOR.
type Command struct {
	At    time.Time // the server's clock
	Addr  string    // the client's; "lua" within a script
	Words []string  // the first in capitals
}

// Commands returns what ran since the last call, without the commands that scripts ran.
func (m *Monitor) Commands() []Command {
	m.t.Helper()
	return slices.DeleteFunc(m.Everything(), func(c Command) bool { return c.Addr == "lua" })
}

// Everything returns what ran since the last call, also what scripts ran.
func (m *Monitor) Everything() []Command {
	m.t.Helper()
	marker := fmt.Sprintf("marker-%d", time.Now().UnixNano())
	m.s.Do("ECHO", marker)
	var commands []Command
	for {
		line, err := redis.String(redis.ReceiveWithTimeout(m.conn, 10*time.Second))
		if err != nil {
			m.t.Fatalf("read MONITOR: %v", err)
		}
		c := parseMonitor(line)
		if len(c.Words) == 2 && c.Words[0] == "ECHO" && c.Words[1] == marker {
			return commands
		}
		if len(c.Words) > 0 {
			commands = append(commands, c)
		}
	}
}

// parseMonitor reads `1700000000.123456 [0 127.0.0.1:1] "GET" "k"`.
func parseMonitor(line string) Command {
	head, rest, found := strings.Cut(line, "] ")
	stamp, source, _ := strings.Cut(head, " [")
	seconds, micros, _ := strings.Cut(stamp, ".")
	s, errS := strconv.ParseInt(seconds, 10, 64)
	us, errU := strconv.ParseInt(micros, 10, 64)
	if !found || errS != nil || errU != nil {
		return Command{} // the OK that answers MONITOR, or a word that is none of ours
	}
	_, addr, _ := strings.Cut(source, " ")
	c := Command{At: time.Unix(s, us*1000), Addr: addr, Words: quotedWords(rest)}
	if len(c.Words) > 0 {
		c.Words[0] = strings.ToUpper(c.Words[0])
	}
	return c
}

// quotedWords reads strings that the server quotes as Go does.
func quotedWords(text string) (words []string) {
	for text != "" {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			break
		}
		word, _ := strconv.Unquote(quoted) // its syntax is right
		words = append(words, word)
		text = strings.TrimPrefix(text[len(quoted):], " ")
	}
	return words
}

// Watched waits until a waiter has asked for a lock and then watched its key (EXISTS), and returns the time from the one to the other.
func (m *Monitor) Watched(t testing.TB) time.Duration {
	t.Helper()
	var asked, watched time.Time
	Await(t, "a question and the watch", func() bool {
		for _, c := range m.Commands() {
			switch c.Words[0] {
			case "EVALSHA", "EVAL":
				asked = c.At
			case "EXISTS":
				watched = c.At
			}
		}
		return !watched.IsZero()
	})
	return watched.Sub(asked)
}
