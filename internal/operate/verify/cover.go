package verify

import "strings"

// Covers tells whether every key that matches one of the inner patterns matches one of the outer ones. It may
// say no where the answer is yes, never the other way round: an inner pattern has to lie within a single outer
// one, and of patterns with classes or backslashes only the same pattern lies within. No outer pattern at all
// stands for every key.
func Covers(outer, inner []string) (missing string, ok bool) {
	if len(outer) == 0 {
		return "", true
	}
	for _, p := range inner {
		within := false
		for _, q := range outer {
			within = within || contains(q, p)
		}
		if !within {
			return p, false
		}
	}
	return "", true
}

// contains tells whether a pattern contains another: it matches the other's text, in which * and ? are taken
// for letters of their own. Only a * takes a *, and only a * or a ? takes a ?.
func contains(outer, inner string) bool {
	if outer == inner {
		return true
	}
	if strings.ContainsAny(outer+inner, `[]\`) {
		return false
	}
	o, i := 0, 0
	star, resume := -1, 0
	for i < len(inner) {
		switch {
		case o < len(outer) && outer[o] == '*':
			star, resume = o, i
			o++
		case o < len(outer) && inner[i] != '*' && (outer[o] == '?' || outer[o] == inner[i]):
			o, i = o+1, i+1
		case star >= 0:
			resume++
			o, i = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(outer[o:], "*") == ""
}
