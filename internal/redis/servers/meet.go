package servers

import (
	"slices"
	"strings"
)

// Meet returns a key that matches both patterns, and whether there is one. It prefers printable bytes.
func Meet(a, b string) (key string, ok bool) {
	x, y := elements(a), elements(b)
	type state struct{ i, j int }
	dead := map[state]bool{} // from here nothing matches
	var walk func(i, j int) (string, bool)
	walk = func(i, j int) (string, bool) {
		if i == len(x) && j == len(y) {
			return "", true
		}
		s := state{i, j}
		if dead[s] {
			return "", false
		}
		dead[s] = true // until it is found to be alive; walks that come back here gain nothing
		if i < len(x) && x[i].star {
			if rest, ok := walk(i+1, j); ok {
				return rest, true
			}
		}
		if j < len(y) && y[j].star {
			if rest, ok := walk(i, j+1); ok {
				return rest, true
			}
		}
		if i < len(x) && j < len(y) && !(x[i].star && y[j].star) {
			if c, ok := common(x[i], y[j]); ok {
				if rest, ok := walk(x[i].after(i), y[j].after(j)); ok {
					return string([]byte{c}) + rest, true
				}
			}
		}
		return "", false
	}
	return walk(0, 0)
}

// element is a star, or a set of bytes.
type element struct {
	star bool
	set  [256]bool
}

// after is where a pattern goes on once the element has taken a byte: a star may take more.
func (e *element) after(at int) int {
	if e.star {
		return at
	}
	return at + 1
}

func elements(pattern string) []*element {
	var all []*element
	for p := 0; p < len(pattern); {
		e := &element{star: pattern[p] == '*'}
		next := p + 1
		if !e.star {
			for c := range 256 {
				var ok bool
				if next, ok = matchOne(pattern, p, byte(c)); ok {
					e.set[c] = true
				}
			}
		}
		all = append(all, e)
		p = next
	}
	return all
}

// common returns a byte that both take: a letter, a digit, something printable, else any.
func common(a, b *element) (byte, bool) {
	both := func(c int) bool { return (a.star || a.set[c]) && (b.star || b.set[c]) }
	for _, span := range [][2]int{{'a', 'z'}, {'0', '9'}, {'!', '~'}, {0, 255}} {
		for c := span[0]; c <= span[1]; c++ {
			if both(c) {
				return byte(c), true
			}
		}
	}
	return 0, false
}

// Covers tells whether every key that the narrower pattern matches matches the wide one. It may say no where the answer is
// yes, never the other way round: of patterns with classes or backslashes, only the same one is covered, and those
// that begin with the text of a wide pattern that ends with its only star.
func Covers(wide, narrow string) bool {
	const special = `*?[]\`
	if wide == narrow {
		return true
	}
	if head, open := strings.CutSuffix(wide, "*"); open && !strings.ContainsAny(head, special) && strings.HasPrefix(narrow, head) {
		return true
	}
	if strings.ContainsAny(wide+narrow, `[]\`) {
		return false
	}
	// The wide pattern matches the narrow one's text, in which * and ? count as letters of their own. Only a * takes a *, and only
	// a * or a ? takes a ?.
	w, n := 0, 0
	star, resume := -1, 0
	for n < len(narrow) {
		switch {
		case w < len(wide) && wide[w] == '*':
			star, resume = w, n
			w++
		case w < len(wide) && narrow[n] != '*' && (wide[w] == '?' || wide[w] == narrow[n]):
			w, n = w+1, n+1
		case star >= 0:
			resume++
			w, n = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(wide[w:], "*") == ""
}

// Uncovered returns an inner pattern that lies within no single outer one, and whether there is one. No outer pattern at
// all stands for every key.
func Uncovered(outer, inner []string) (missing string, some bool) {
	for _, p := range inner {
		if len(outer) > 0 && !slices.ContainsFunc(outer, func(q string) bool { return Covers(q, p) }) {
			return p, true
		}
	}
	return "", false
}
