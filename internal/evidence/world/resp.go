package world

import (
	"bytes"
	"fmt"
	"strconv"
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
		panic(fmt.Sprintf("world: a client sends %q where a request has a line with %q", text[:end], kind))
	}
	value, _ = strconv.Atoi(string(text[1 : end-1]))
	return value, end + 1
}

// fault is an error as a reply or part of one has it.
type fault string

func (f fault) Error() string { return string(f) }

// status is a reply such as OK.
type status string

// replyFrom reads one reply: nil, int64, string, status, fault or []any.
func replyFrom(text []byte) (reply any, n int) {
	end := bytes.IndexByte(text, '\n')
	line := string(text[1 : end-1])
	n = end + 1
	switch text[0] {
	case '+':
		return status(line), n
	case '-':
		return fault(line), n
	case ':':
		i, _ := strconv.ParseInt(line, 10, 64)
		return i, n
	case '$':
		size, _ := strconv.Atoi(line)
		if size < 0 {
			return nil, n
		}
		return string(text[n : n+size]), n + size + 2
	case '*':
		count, _ := strconv.Atoi(line)
		if count < 0 {
			return nil, n
		}
		all := make([]any, count)
		for i := range all {
			var m int
			all[i], m = replyFrom(text[n:])
			n += m
		}
		return all, n
	}
	panic(fmt.Sprintf("world: the server replies %q, of a kind that Redis has not in RESP2", text[:end]))
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
