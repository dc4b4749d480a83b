package stages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lockmigrate/lockmigrate/internal/glob"
)

// Covers tells that a key belongs to the namespace. In a pattern * stands for any text, ? for one
// character; CheckPatterns refuses what else is special for the server.
func (r Record) Covers(key string) bool { return glob.MatchAny(r.Patterns, key) }

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
			if _, meet := glob.Meet(p, own); meet {
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

func unpackPatterns(text string) (patterns []string, err error) {
	err = json.Unmarshal([]byte(text), &patterns)
	return UnescapeAll(patterns), err
}
