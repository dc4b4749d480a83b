package proxy

import "bytes"

// replies finds where replies end in what a server sends, in pieces cut anywhere, in RESP2 and RESP3.
type replies struct {
	left int64    // values of the present reply that are still to come
	body int64    // bytes of its present word, with the line break, that are still to come
	push bool     // it is no reply, but what the server sends by itself (RESP3)
	line [32]byte // the beginning of a line whose end has not come
	n    int      // bytes of it
}

// between tells that the next byte begins a reply.
func (r *replies) between() bool { return r.left == 0 && r.body == 0 && r.n == 0 }

// next reads b up to the end of a reply, or all of it. It returns how many bytes that is, and whether a reply to a request ends there.
func (r *replies) next(b []byte) (n int, ended bool) {
	for n < len(b) {
		if r.body > 0 {
			part := min(r.body, int64(len(b)-n))
			n, r.body = n+int(part), r.body-part
		} else {
			end := bytes.IndexByte(b[n:], '\n')
			if end < 0 {
				r.n += copy(r.line[r.n:], b[n:])
				return len(b), false
			}
			line := b[n : n+end]
			if r.n > 0 {
				r.n += copy(r.line[r.n:], line)
				line, r.n = r.line[:r.n], 0
			}
			n += end + 1
			r.value(line)
		}
		if r.left == 0 && r.body == 0 {
			return n, !r.push
		}
	}
	return n, false
}

// value reads the first line of a value.
func (r *replies) value(line []byte) {
	kind := byte(0)
	if len(line) > 0 {
		kind = line[0]
	}
	if r.left == 0 {
		r.left, r.push = 1, kind == '>'
	}
	r.left--
	switch kind {
	case '*', '~', '>':
		r.left += count(line)
	case '%':
		r.left += 2 * count(line)
	case '|': // attributes, and then the value that has them
		r.left += 2*count(line) + 1
	case '$', '=', '!':
		if len(line) > 1 && line[1] != '-' {
			r.body = count(line) + 2
		}
	}
}

// count is the number in a value's first line; 0 for a null.
func count(line []byte) (n int64) {
	for _, c := range line[1:] {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int64(c-'0')
	}
	return n
}
