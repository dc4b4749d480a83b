// Package mutate lets a plain `go test` run a fuzz target over more than its seeds, without chance: over
// inputs that a generator with a fixed seed makes from them. They are the same in every run, so unchanged
// code cannot fail by luck, and a failure is repeated by the name of its subtest.
//
//	func FuzzParse(f *testing.F) {
//		corpus := mutate.New(f)
//		corpus.Add("redis://host:6379/0")
//		corpus.Grow(2000)
//		f.Fuzz(func(t *testing.T, text string) { ... })
//	}
//
// Under -fuzz it adds the seeds alone: there the fuzzer mutates, guided by coverage. What that finds is
// committed under testdata/fuzz, which go test runs too.
package mutate

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// Corpus is the inputs of one fuzz target.
type Corpus struct {
	target interface {
		testing.TB
		Add(args ...any)
	}
	seeds [][]any
}

// New returns an empty corpus.
func New(f *testing.F) *Corpus { return &Corpus{target: f} }

// Add adds a seed: strings, []byte, int64 and bool are mutated, other types stay as they are.
func (c *Corpus) Add(args ...any) {
	c.seeds = append(c.seeds, args)
	c.target.Add(args...)
}

// Grow adds n inputs that are made from the seeds.
func (c *Corpus) Grow(n int) {
	if fuzz := flag.Lookup("test.fuzz"); fuzz != nil && fuzz.Value.String() != "" {
		return
	}
	for _, args := range grow(c.target.Name(), c.seeds, n) {
		c.target.Add(args...)
	}
}

// grow makes n inputs. The name keeps targets with the same seeds from having the same inputs.
func grow(name string, seeds [][]any, n int) [][]any {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name))
	g := &generator{rand.New(rand.NewPCG(1, hash.Sum64())), seeds}
	out, known := make([][]any, n), map[string]bool{}
	for i := range out {
		for range 10 { // rather than one that there is already
			out[i] = g.input()
			if id := fmt.Sprintf("%q", out[i]); !known[id] {
				known[id] = true
				break
			}
		}
	}
	return out
}

type generator struct {
	*rand.Rand
	seeds [][]any
}

// input is a seed with at least one argument that may be another.
func (g *generator) input() []any {
	args := slices.Clone(g.seeds[g.IntN(len(g.seeds))])
	which := g.IntN(len(args))
	for j := range args {
		if j == which || g.IntN(3) == 0 {
			args[j] = g.arg(args[j], j)
		}
	}
	return args
}

// numbers are those that parsers get wrong.
var numbers = []int64{0, 1, -1, 2, 9, 10, 127, 128, 255, 256, 1000, 16383, 16384, 32767, 65535, 65536, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32,
	1 << 53, 1<<63 - 1, -1 << 63, -1 << 31, 1_700_000_000, 1_700_000_000_000, 6123456789012345678}

// pieces are what text is made of that means something to one parser or another.
var pieces = []string{"", " ", "\r\n", "\n", "\x00", "\x1b[", "\xff", "\u202e", "é", "\"", "'", "\\", "\\x", "%", "%2", "%s", "@", ":", "::", "[", "]", "[::1]", "{", "}", "{}",
	"(", ")", "/", "//", "?", "#", "*", "**", "$", "$-1", "+", "-", ".", ",", "=", "&", "<", "0", "00", "-0", "1e308", "nan", "inf", "null", "true", "0x1",
	"9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616", "99999999999999999999", "1_0", "\u0663"}

func (g *generator) arg(arg any, at int) any {
	switch v := arg.(type) {
	case string:
		return string(g.bytes([]byte(v), at))
	case []byte:
		return g.bytes(slices.Clone(v), at)
	case int64:
		if g.IntN(2) == 0 {
			return numbers[g.IntN(len(numbers))]
		}
		return v + g.Int64N(257) - 128
	case bool:
		return !v
	default:
		return arg
	}
}

// bytes changes text in one to four ways.
func (g *generator) bytes(b []byte, at int) []byte {
	for range 1 + g.IntN(4) {
		b = g.change(b, at)
	}
	return b
}

func (g *generator) change(b []byte, at int) []byte {
	i := g.IntN(len(b) + 1)
	j := i + g.IntN(min(len(b)-i, 16)+1) // b[i:j] is a short part
	switch g.IntN(9) {
	case 0: // one bit
		if i < len(b) {
			b[i] ^= 1 << g.IntN(8)
		}
	case 1: // one byte
		if i < len(b) {
			b[i] = byte(g.IntN(256))
		}
	case 2: // without a part
		return slices.Delete(b, i, j)
	case 3: // a part twice
		return slices.Insert(b, j, slices.Clone(b[i:j])...)
	case 4: // its beginning only
		return b[:i]
	case 5: // a piece more
		return slices.Insert(b, i, []byte(pieces[g.IntN(len(pieces))])...)
	case 6: // a piece instead
		return slices.Concat(b[:i], []byte(pieces[g.IntN(len(pieces))]), b[j:])
	case 7: // another number
		return g.number(b)
	case 8: // it goes on as another seed does
		return g.splice(b[:i], at)
	}
	return b
}

// number replaces a run of digits.
func (g *generator) number(b []byte) []byte {
	var runs [][2]int
	for i := 0; i < len(b); i++ {
		from := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		if i > from {
			runs = append(runs, [2]int{from, i})
		}
	}
	if len(runs) == 0 {
		return b
	}
	run := runs[g.IntN(len(runs))]
	return slices.Concat(b[:run[0]], strconv.AppendInt(nil, numbers[g.IntN(len(numbers))], 10), b[run[1]:])
}

func (g *generator) splice(head []byte, at int) []byte {
	var tail []byte
	switch v := g.seeds[g.IntN(len(g.seeds))][at].(type) {
	case string:
		tail = []byte(v)
	case []byte:
		tail = v
	}
	return slices.Concat(head, tail[g.IntN(len(tail)+1):])
}
