package world

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"

	"github.com/alicebob/miniredis/v2/server"
)

// command reads one command off the beginning of text. n is 0 where it is not complete.
func command(text []byte) (words []string, n int) {
	count, n := number(text, '*')
	if n == 0 {
		return nil, 0
	}
	words = make([]string, 0, count)
	for range count {
		size, m := number(text[n:], '$')
		if m == 0 || len(text) < n+m+size+2 {
			return nil, 0
		}
		words = append(words, string(text[n+m:n+m+size]))
		n += m + size + 2
	}
	return words, n
}

// number reads a line of a type and a number, and how long it is; 0 where it is not complete.
func number(text []byte, kind byte) (value, n int) {
	end := bytes.IndexByte(text, '\n')
	if end < 1 {
		return 0, 0
	}
	if text[0] != kind {
		panic("world: a client sends " + string(text[:end]))
	}
	value, _ = strconv.Atoi(string(text[1 : end-1]))
	return value, end + 1
}

// fault is an error as a reply or part of one has it.
type fault string

func (f fault) Error() string { return string(f) }

// status is a reply such as OK.
type status string

// replyFrom reads one reply: nil, int64, string, []any, or an error.
func replyFrom(raw []byte) any {
	reply, err := server.ParseReply(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		return err
	}
	switch r := reply.(type) {
	case int:
		return int64(r)
	case server.Simple:
		return string(r)
	}
	return reply
}

// encode writes one reply.
func encode(b []byte, reply any) []byte {
	switch r := reply.(type) {
	case nil:
		return append(b, "$-1\r\n"...)
	case status:
		return append(append(append(b, '+'), r...), "\r\n"...)
	case fault:
		return append(append(append(b, '-'), r...), "\r\n"...)
	case int64:
		return append(strconv.AppendInt(append(b, ':'), r, 10), "\r\n"...)
	case string:
		b = append(strconv.AppendInt(append(b, '$'), int64(len(r)), 10), "\r\n"...)
		return append(append(b, r...), "\r\n"...)
	case []any:
		b = append(strconv.AppendInt(append(b, '*'), int64(len(r)), 10), "\r\n"...)
		for _, element := range r {
			b = encode(b, element)
		}
		return b
	}
	panic(fmt.Sprintf("world: %T is no reply: one of this package's own commands returned it", reply))
}
