package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Covers tells that a key belongs to the namespace. In a pattern * stands for any text, ? for one
// character.
func (r Record) Covers(key string) bool {
	for _, p := range r.Patterns {
		if Match(p, key) {
			return true
		}
	}
	return false
}

// Match tells whether a pattern matches a key. Only * and ? are special in it.
func Match(pattern, key string) bool {
	for {
		star := strings.IndexByte(pattern, '*')
		if star < 0 {
			return len(pattern) == len(key) && same(pattern, key)
		}
		if len(key) < star || !same(pattern[:star], key[:star]) {
			return false
		}
		pattern, key = pattern[star+1:], key[star:]
		if pattern == "" {
			return true
		}
		// The first place where the text up to the next star fits is as good as any later one, except
		// for the last text, which must end the key.
		next := strings.IndexByte(pattern, '*')
		if next < 0 {
			return len(key) >= len(pattern) && same(pattern, key[len(key)-len(pattern):])
		}
		for !(len(key) >= next && same(pattern[:next], key[:next])) {
			if len(key) < next || key == "" {
				return false
			}
			key = key[1:]
		}
	}
}

func same(pattern, text string) bool {
	for i := range len(pattern) {
		if pattern[i] != '?' && pattern[i] != text[i] {
			return false
		}
	}
	return true
}

// CheckPatterns tells whether patterns can describe a namespace's keys.
func CheckPatterns(patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("a namespace needs at least one key pattern")
	}
	for _, p := range patterns {
		if p == "" || strings.ContainsAny(p, `[]\`) {
			return fmt.Errorf("pattern %q: only * and ? are special, and it must not be empty", p)
		}
		if strings.Trim(p, "*?") == "" {
			return fmt.Errorf("pattern %q covers every key of the server", p)
		}
		for _, own := range []string{RecordKey("*"), MembersKey("*"), ListKey} {
			if Overlap(p, own) {
				return fmt.Errorf("pattern %q covers the keys of the namespaces themselves", p)
			}
		}
	}
	return nil
}

// Escape returns a pattern as text: bytes that are no UTF-8 become \xHH. A pattern has no backslash of its own.
func Escape(pattern string) string {
	if utf8.ValidString(pattern) {
		return pattern
	}
	var b strings.Builder
	for i := 0; i < len(pattern); {
		r, size := utf8.DecodeRuneInString(pattern[i:])
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, pattern[i])
		} else {
			b.WriteString(pattern[i : i+size])
		}
		i += size
	}
	return b.String()
}

// Unescape undoes Escape. A backslash that does not begin \xHH stays as it is.
func Unescape(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, `\x`)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if len(after) >= 2 {
			if n, err := strconv.ParseUint(after[:2], 16, 8); err == nil {
				b.WriteByte(byte(n))
				text = after[2:]
				continue
			}
		}
		b.WriteString(`\x`)
		text = after
	}
}

func packPatterns(patterns []string) (string, error) {
	escaped := make([]string, len(patterns))
	for i, p := range patterns {
		escaped[i] = Escape(p)
	}
	text, err := json.Marshal(escaped)
	return string(text), err
}

func unpackPatterns(text string) (patterns []string, err error) {
	err = json.Unmarshal([]byte(text), &patterns)
	for i, p := range patterns {
		patterns[i] = Unescape(p)
	}
	return patterns, err
}
