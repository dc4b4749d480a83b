package proxy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/wire"
)

// frame feeds a framer with pieces of a stream, as conn.pass does. It returns what passed, the requests that it found, and how it
// ended.
func frame(stream []byte, pieces func() int) (passed []byte, requests []string, end finding) {
	f := framer{commands: passing.Commands(), covers: passing.Covers}
	var held []byte
	for len(stream) > 0 {
		n := min(len(stream), max(1, pieces()))
		held, stream = append(held, stream[:n]...), stream[n:]
		for more := true; more; {
			pass, found, length := f.next(held)
			passed = append(passed, held[:pass]...)
			switch found {
			case nothing:
				more = false
			case request:
				requests = append(requests, fmt.Sprintf("%q", f.words))
				passed = append(passed, held[pass:pass+length]...)
			default:
				return append(append(passed, held[pass:]...), stream...), requests, found
			}
			held = held[pass+length:]
		}
	}
	return append(passed, held...), requests, nothing
}

// FuzzFramer: however a stream is cut, all of it passes in its order, and the same requests are found.
func FuzzFramer(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seeded(seed, 6), seed)
	}
	for _, text := range []string{"", "*", "*3\r\n$3\r\nSET\r\n$6\r\nlock.a\r\n$1\r\nx\r\n", "*1\rX$4\rXMULTIX\r\n", "*-1\r\n*0\r\n*00\r\n", "*+1\r\n", "*2\r\n$3\r\nGET\r\n$-1\r\n",
		"get lock.a\n", "get \"lock.a\r\n", "\x00\n", "*9223372036854775807\r\n$3\r\nGET\r\n", "*99999999999999999999\r\n", "*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$6\r\nlock.b\r\n",
		"*4\r\n$4\r\nEVAL\r\n$1\r\nx\r\n$1\r\n1\r\n$6\r\nlock.a\r\n", "*2\r\n$40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$1\r\na\r\n"} {
		f.Add([]byte(text), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64) {
		passed, whole, end := frame(stream, func() int { return len(stream) })
		if !bytes.Equal(passed, stream) {
			t.Fatalf("%q became %q", stream, passed)
		}
		r := rand.New(rand.NewPCG(seed, 0))
		for _, pieces := range []func() int{func() int { return 1 }, func() int { return r.IntN(20) }} {
			if len(stream) > 10_000 {
				continue // a byte at a time takes time in its square
			}
			passed, cutUp, ended := frame(stream, pieces)
			if !bytes.Equal(passed, stream) || fmt.Sprint(cutUp) != fmt.Sprint(whole) || ended != end {
				t.Fatalf("%q: %s and %d whole, %s and %d in pieces", stream, whole, end, cutUp, ended)
			}
		}
	})
}

// TestLongRequests: a request that is too long to be held passes in pieces, and is cut when a lock's key comes up in it.
func TestLongRequests(t *testing.T) {
	value := string(bytes.Repeat([]byte("v"), 400_000))
	for _, c := range []struct {
		words []string
		end   finding
	}{
		{[]string{"MSET", "a", value, "b", value, "c", value, "d", value}, nothing},
		{[]string{"MSET", "a", value, "b", value, "c", value, "lock.d", value}, cut},
		{[]string{"MSET", "a", value, "b", value, "c", value, "d", "lock.d"}, nothing},
		{[]string{"SET", "a", value + value + value}, nothing},
		{[]string{"SET", "lock.a", value + value + value}, cut},
		{[]string{"GET", value + value + value}, cut},
		{[]string{"EVAL", value + value + value, "1", "a", "lock.a"}, nothing},
		{[]string{"EVAL", value + value + value, "2", "a", "lock.a"}, cut},
	} {
		stream := wire.Append(wire.Append(nil, c.words...), "GET", "lock.z")
		for _, piece := range []int{len(stream), 16 << 10} {
			passed, requests, end := frame(stream, func() int { return piece })
			if end != c.end || !bytes.Equal(passed, stream) {
				t.Errorf("%s %s: %d, not %d", c.words[0], c.words[len(c.words)-2][:1], end, c.end)
			}
			if c.end == nothing && len(requests) != 1 {
				t.Errorf("%s: %d requests after it", c.words[0], len(requests))
			}
		}
	}
}
