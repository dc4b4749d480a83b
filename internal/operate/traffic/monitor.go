package traffic

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redis/wire"
)

// Monitor is the MONITOR of one server. It is not safe for concurrent use, but for Close.
type Monitor struct {
	net.Conn
	in    *bufio.Reader
	Bytes int64 // that were read

	scripts Scripts
}

// longest is how much of a line is kept. A lock's command is far shorter.
const longest = 32 << 10

// OpenMonitor begins MONITOR. Before, if it is not nil, may ask for something else first on the same connection.
func OpenMonitor(ctx context.Context, end *endpoint.Endpoint, addr string, before func(ask func(words ...string) (string, error))) (*Monitor, error) {
	conn, err := end.DialRaw(ctx, addr)
	if err != nil {
		return nil, err
	}
	m := &Monitor{Conn: conn, in: bufio.NewReaderSize(conn, longest)}
	if before != nil {
		before(m.ask)
	}
	if _, err := m.ask("MONITOR"); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return m, nil
}

// ask sends a command whose reply is one line. What the server refuses is a redis.Error.
func (m *Monitor) ask(words ...string) (string, error) {
	_ = m.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := m.Write(wire.Append(nil, words...)); err != nil {
		return "", err
	}
	line, err := m.in.ReadString('\n')
	if err == nil && line[0] == '-' {
		return "", redis.Error(strings.TrimSpace(line[1:]))
	}
	return strings.TrimSpace(line), err
}

// Line returns the next line. Cut says that only its beginning is there.
func (m *Monitor) Line() (text string, cut bool, err error) {
	slice, err := m.in.ReadSlice('\n')
	m.Bytes += int64(len(slice))
	text = string(slice)
	for errors.Is(err, bufio.ErrBufferFull) {
		cut = true
		slice, err = m.in.ReadSlice('\n')
		m.Bytes += int64(len(slice))
	}
	return text, cut, err
}

// Next reads the next command. A line that cannot be read is ErrUnread; the next one may be read.
func (m *Monitor) Next(c *Command) error {
	text, cut, err := m.Line()
	if err != nil {
		return err
	}
	if err := c.ParseCut(text, cut); err != nil {
		return err
	}
	m.scripts.Attribute(c)
	return nil
}

// ParseCut is Parse of a line that may be cut, within an escape too.
func (c *Command) ParseCut(text string, cut bool) error {
	err := c.Parse(text)
	for end := len(text); cut && err != nil && end > max(0, len(text)-5); end-- {
		err = c.Parse(text[:end] + `"`)
	}
	c.Cut = c.Cut || cut
	return err
}

// ReadFile reads a recorded stream of MONITOR lines, as redis-cli monitor prints them. Take is told of each command, and unread of each line
// that cannot be read.
func ReadFile(ctx context.Context, in io.Reader, take func(*Command), unread func()) error {
	m := Monitor{in: bufio.NewReaderSize(in, longest)}
	var c Command
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		text, cut, err := m.Line()
		switch text = strings.TrimSpace(text); {
		case text == "" || text == "OK" || text == "+OK":
		case c.ParseCut(text, cut) != nil:
			unread()
		default:
			m.scripts.Attribute(&c)
			take(&c)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
