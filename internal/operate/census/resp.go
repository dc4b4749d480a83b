package census

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/gomodule/redigo/redis"
)

// The census speaks the protocol itself: redigo makes several allocations for every reply, and a census
// has two replies for every key of the server. Only what the census asks for is understood.

// maxName bounds a key's name; Redis itself allows 512 MB.
const maxName = 64 << 10

// ErrNotRedis says that what answers does not speak Redis's protocol.
var ErrNotRedis = errors.New("the answer is not in Redis's protocol")

type replyReader struct{ r *bufio.Reader }

func newReplyReader(r io.Reader) *replyReader { return &replyReader{bufio.NewReaderSize(r, 64<<10)} }

// header reads a reply's first line: its kind, and the text behind it, valid until the next read.
func (p *replyReader) header() (kind byte, line []byte, err error) {
	line, err = p.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return 0, nil, fmt.Errorf("%w: a line of more than 64 KiB", ErrNotRedis)
	}
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return 0, nil, fmt.Errorf("%w: a line %.20q", ErrNotRedis, line)
	}
	return line[0], line[1 : len(line)-2], nil
}

// number reads a reply of one number, of a kind; an error reply comes back as a redis.Error.
func (p *replyReader) number(want byte) (int64, error) {
	kind, line, err := p.header()
	switch {
	case err != nil:
		return 0, err
	case kind == want:
		return parseInt(line)
	case kind == '-':
		return 0, redis.Error(line)
	}
	return 0, unexpected(kind, line)
}

func (p *replyReader) integer() (int64, error) { return p.number(':') }

// array reads the head of an array: how many replies follow.
func (p *replyReader) array() (int, error) {
	n, err := p.number('*')
	return int(max(n, 0)), err
}

// bulk reads a bulk or status reply and appends at most keep bytes of it to buf; the rest is skipped.
// A nil reply has the length -1.
func (p *replyReader) bulk(buf []byte, keep int) (_ []byte, length int, err error) {
	kind, line, err := p.header()
	if err != nil {
		return buf, 0, err
	}
	switch kind {
	case '$':
	case '+':
		return append(buf, line[:min(keep, len(line))]...), len(line), nil
	case '-':
		return buf, 0, redis.Error(line)
	default:
		return buf, 0, unexpected(kind, line)
	}
	size, err := parseInt(line)
	if err != nil || size < 0 {
		return buf, -1, err
	}
	n := min(int(size), keep)
	for from := len(buf); len(buf)-from < n; {
		piece, err := p.r.Peek(min(n-(len(buf)-from), 4096))
		if err != nil {
			return buf, 0, truncated(err)
		}
		buf = append(buf, piece...)
		_, _ = p.r.Discard(len(piece)) // just peeked
	}
	if _, err := p.r.Discard(int(size) - n + 2); err != nil {
		return buf, 0, truncated(err)
	}
	return buf, int(size), nil
}

func parseInt(line []byte) (int64, error) {
	n, err := strconv.ParseInt(string(line), 10, 64)
	if err != nil {
		return 0, unexpected(':', line)
	}
	return n, nil
}

func unexpected(kind byte, line []byte) error {
	return fmt.Errorf("%w: %q", ErrNotRedis, string(kind)+string(line[:min(len(line), 40)]))
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
