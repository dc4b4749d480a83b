package servers

import "slices"

// Match tells whether a key matches a pattern as the server's own MATCH does: * and ?, classes such as
// [a-z] and [^a-z], and a backslash before what is meant literally. It takes time in proportion to both
// lengths, whatever the pattern.
func Match[K string | []byte](pattern string, key K) bool {
	p, k := 0, 0
	star, resume := -1, 0 // the last * and the first byte of the key that it has not taken yet
	for {
		if k == len(key) {
			for p < len(pattern) && pattern[p] == '*' {
				p++
			}
			return p == len(pattern)
		}
		if p < len(pattern) && pattern[p] == '*' {
			star, resume = p, k
			p++
			continue
		}
		if p < len(pattern) {
			if next, ok := matchOne(pattern, p, key[k]); ok {
				p, k = next, k+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		resume++
		p, k = star+1, resume
	}
}

// matchOne matches one byte against the element of the pattern at p, and returns where the next begins.
func matchOne(pattern string, p int, c byte) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		return matchClass(pattern, p+1, c)
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	}
	return p + 1, pattern[p] == c
}

// matchClass reads a class whose bracket is open. One that is never closed ends with the pattern.
func matchClass(pattern string, p int, c byte) (next int, ok bool) {
	negate := p < len(pattern) && pattern[p] == '^'
	if negate {
		p++
	}
	for ; ; p++ {
		switch {
		case p >= len(pattern):
			return p, ok != negate
		case pattern[p] == '\\' && p+1 < len(pattern):
			p++
			ok = ok || pattern[p] == c
		case pattern[p] == ']':
			return p + 1, ok != negate
		case p+2 < len(pattern) && pattern[p+1] == '-':
			from, to := pattern[p], pattern[p+2]
			if from > to {
				from, to = to, from
			}
			p += 2
			ok = ok || c >= from && c <= to
		default:
			ok = ok || pattern[p] == c
		}
	}
}

// Matcher is MatchAny of these patterns, nil where there are none.
func Matcher(patterns []string) func(key string) bool {
	if len(patterns) == 0 {
		return nil
	}
	return func(key string) bool { return MatchAny(patterns, key) }
}

// MatchAny tells whether a key matches one of the patterns.
func MatchAny[K string | []byte](patterns []string, key K) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Match(p, key) })
}
