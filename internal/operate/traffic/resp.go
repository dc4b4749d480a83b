package traffic

import (
	"bytes"
	"strconv"
	"strings"
)

// value is one value of Redis's protocol, as far as a lock's commands need it: long strings are cut, and of long lists
// the first elements are kept.
type respValue struct {
	kind  byte   // + - : $ * and those of RESP3; 'i' for an inline command
	text  string // of a scalar
	null  bool
	elems []respValue
}

func (v *respValue) integer() (int64, bool) {
	if v.kind != ':' {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

const (
	longestWord = 32 << 10 // what is kept of a string
	longestLine = 64 << 10 // a line that is longer is no protocol
)

// respReader reads values from the pieces of one direction of a connection. It keeps no more than one line and the words
// of the value that it reads.
type respReader struct {
	requests bool // inline commands are understood
	line     []byte
	open     []respFrame
	bulk     int // bytes of a string that are still to come, with its CR LF; 0: a line is next
	word     []byte
	kind     byte
	emit     func(respValue)
}

// respFrame is a list that is not complete yet.
type respFrame struct {
	value respValue
	need  int
}

// feed takes in the next bytes. False: they are no protocol.
func (r *respReader) feed(data []byte) bool {
	for len(data) > 0 {
		if r.bulk > 0 {
			n := min(r.bulk, len(data))
			if keep := min(n, r.bulk-2, longestWord-len(r.word)); keep > 0 {
				r.word = append(r.word, data[:keep]...)
			}
			r.bulk -= n
			data = data[n:]
			if r.bulk == 0 {
				r.complete(respValue{kind: r.kind, text: string(r.word)})
				r.word = r.word[:0]
			}
			continue
		}
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			r.line = append(r.line, data...)
			return len(r.line) <= longestLine
		}
		line := data[:end]
		if len(r.line) > 0 {
			r.line = append(r.line, line...)
			line = r.line
		}
		data = data[end+1:]
		ok := r.take(bytes.TrimSuffix(line, []byte("\r")))
		if r.line = r.line[:0]; !ok {
			return false
		}
	}
	return true
}

// take reads a line.
func (r *respReader) take(line []byte) bool {
	if len(line) == 0 {
		return r.requests && len(r.open) == 0 // an empty inline command is ignored by the server too
	}
	rest := line[1:]
	switch line[0] {
	case '+', '-', ':', ',', '#', '(', '_':
		if r.requests {
			return r.inline(string(line))
		}
		r.complete(respValue{kind: line[0], text: string(rest), null: line[0] == '_'})
		return true
	case '$', '=', '!':
		n, ok := length(rest)
		if !ok || n > 512<<20 {
			return false
		}
		if n < 0 {
			r.complete(respValue{kind: '$', null: true})
			return true
		}
		r.kind, r.bulk = line[0], n+2
		return true
	case '*', '~', '%', '>', '|':
		n, ok := length(rest)
		if !ok || n > 1<<24 || len(r.open) > 32 {
			return false
		}
		if line[0] == '%' || line[0] == '|' {
			n *= 2
		}
		v := respValue{kind: line[0], null: n < 0}
		if n <= 0 {
			r.complete(v)
			return true
		}
		v.elems = make([]respValue, 0, min(n, 8))
		r.open = append(r.open, respFrame{v, n})
		return true
	}
	return r.requests && r.inline(string(line))
}

// length reads how long a string or a list is, -1 for none.
func length(digits []byte) (n int, ok bool) {
	if string(digits) == "-1" {
		return -1, true
	}
	u, err := strconv.ParseUint(string(digits), 10, 30) // it takes no sign
	return int(u), err == nil
}

func (r *respReader) inline(line string) bool {
	if first := line[0] | 0x20; len(r.open) > 0 || first < 'a' || first > 'z' {
		return false // no command begins so: TLS, or the middle of one
	}
	v := respValue{kind: 'i'}
	for word := range strings.FieldsSeq(line) {
		v.elems = append(v.elems, respValue{kind: '$', text: word})
	}
	r.emit(v)
	return true
}

// complete adds a value to the list that it belongs to, or hands it on.
func (r *respReader) complete(v respValue) {
	for len(r.open) > 0 {
		top := &r.open[len(r.open)-1]
		if len(top.value.elems) < MaxWords {
			top.value.elems = append(top.value.elems, v)
		}
		if top.need--; top.need > 0 {
			return
		}
		v = top.value
		r.open = r.open[:len(r.open)-1]
	}
	if v.kind != '|' { // an attribute: what it is about follows
		r.emit(v)
	}
}
