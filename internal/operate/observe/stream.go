package observe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

// Stream is the MONITOR of one server. It is not safe for concurrent use, but for Close.
type Stream struct {
	net.Conn
	in    *bufio.Reader
	Bytes int64 // that were read
}

// longest is how much of a line is kept. A lock's command is far shorter.
const longest = 32 << 10

// OpenStream begins MONITOR. Before, if it is not nil, may ask for something else first on the same connection.
func OpenStream(ctx context.Context, end *endpoint.Endpoint, addr string, before func(ask func(words ...string) (string, error))) (*Stream, error) {
	conn, err := end.DialRaw(ctx, addr)
	if err != nil {
		return nil, err
	}
	s := &Stream{Conn: conn, in: bufio.NewReaderSize(conn, longest)}
	if before != nil {
		before(s.ask)
	}
	if _, err := s.ask("MONITOR"); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return s, nil
}

// ask sends a command whose reply is one line. What the server refuses is a redis.Error.
func (s *Stream) ask(words ...string) (string, error) {
	_ = s.SetDeadline(time.Now().Add(5 * time.Second))
	command := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(s, command); err != nil {
		return "", err
	}
	line, err := s.in.ReadString('\n')
	if err == nil && line[0] == '-' {
		return "", redis.Error(strings.TrimSpace(line[1:]))
	}
	return strings.TrimSpace(line), err
}

// Line returns the next line. Cut says that only its beginning is there.
func (s *Stream) Line() (text string, cut bool, err error) {
	slice, err := s.in.ReadSlice('\n')
	s.Bytes += int64(len(slice))
	text = string(slice)
	for errors.Is(err, bufio.ErrBufferFull) {
		cut = true
		slice, err = s.in.ReadSlice('\n')
		s.Bytes += int64(len(slice))
	}
	return text, cut, err
}

// ParseCut is Parse of a line that may be cut, within an escape too.
func (l *Line) ParseCut(text string, cut bool) error {
	err := l.Parse(text)
	for end := len(text); cut && err != nil && end > max(0, len(text)-5); end-- {
		err = l.Parse(text[:end] + `"`)
	}
	return err
}
