package stages

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// special are the characters that a pattern has to write behind a backslash to name them.
const special = `*?[]\`

// Covers tells that a key belongs to the namespace. In a pattern * stands for any text, ? for one
// character, and a backslash makes the special character behind it an ordinary one.
func (r Record) Covers(key string) bool { return servers.MatchAny(r.Patterns, key) }

// CheckPatterns tells whether patterns can describe a namespace's keys.
func CheckPatterns(patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("a namespace needs at least one key pattern")
	}
	for _, p := range patterns {
		if p == "" {
			return errors.New("a pattern is empty")
		}
		for i := 0; i < len(p); i++ {
			switch {
			case p[i] == '[' || p[i] == ']':
				return fmt.Errorf(`pattern %s: the server reads %c as part of a class, which a namespace cannot have: write \%c or \x%02x for the character`, Escape(p), p[i], p[i], p[i])
			case p[i] == '\\' && (i+1 == len(p) || strings.IndexByte(special, p[i+1]) < 0):
				return fmt.Errorf(`pattern %s: a backslash stands before one of %s, or begins \xHH with two hexadecimal digits`, Escape(p), special)
			case p[i] == '\\':
				i++
			}
		}
		if strings.Trim(p, "*?") == "" {
			return fmt.Errorf("pattern %q covers every key of the server", p)
		}
		for _, own := range []string{RecordKey("*"), MembersKey("*"), ListKey} {
			if _, meet := servers.Meet(p, own); meet {
				return fmt.Errorf("pattern %q covers the keys of the namespaces themselves", p)
			}
		}
	}
	return nil
}

// Escape returns a pattern as text: bytes that are no UTF-8 become \xHH.
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

// Unescape makes a pattern of a text. \xHH is that byte, and no wildcard whatever byte it is; all else stays as it is.
func Unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		if i+4 <= len(text) && text[i+1] == 'x' {
			if n, err := strconv.ParseUint(text[i+2:i+4], 16, 8); err == nil {
				if strings.IndexByte(special, byte(n)) >= 0 {
					b.WriteByte('\\')
				}
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteString(text[i : i+2])
		i++
	}
	return b.String()
}

// EscapeAll is Escape of each pattern.
func EscapeAll(patterns []string) []string { return each(patterns, Escape) }

// UnescapeAll undoes EscapeAll.
func UnescapeAll(texts []string) []string { return each(texts, Unescape) }

func each(all []string, change func(string) string) []string {
	out := make([]string, len(all))
	for i, one := range all {
		out[i] = change(one)
	}
	return out
}
