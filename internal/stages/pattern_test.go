package stages

import (
	"fmt"
	"testing"
	"testing/quick"

	"github.com/stretchr/testify/assert"

	"github.com/lockmigrate/lockmigrate/internal/glob"
)

// TestEveryKeyCanBeNamed: a text of \xHH alone is a pattern of exactly one key, whatever bytes it has, and it survives the record.
func TestEveryKeyCanBeNamed(t *testing.T) {
	named := func(key, other []byte) bool {
		if len(key) == 0 {
			return true
		}
		text := ""
		for _, c := range key {
			text += fmt.Sprintf(`\x%02x`, c)
		}
		pattern := Unescape(text)
		return CheckPatterns([]string{pattern}) == nil && Unescape(Escape(pattern)) == pattern &&
			glob.Match(pattern, key) && glob.Match(pattern, other) == (string(other) == string(key)) && !glob.Match(pattern, append(key, 'x'))
	}
	assert.NoError(t, quick.Check(named, &quick.Config{MaxCount: 2000}))
	for _, c := range []byte(special) {
		assert.True(t, named([]byte{'k', c}, []byte("kz")), "%c", c)
	}
}

func TestPatternsThatCannotBe(t *testing.T) {
	for text, says := range map[string]string{
		``:          `a pattern is empty`,
		`lk.[a]*`:   `pattern lk.[a]*: the server reads [ as part of a class, which a namespace cannot have: write \[ or \x5b for the character`,
		`lk]`:       `write \] or \x5d`,
		`lk\d`:      `a backslash stands before one of *?[]\, or begins \xHH with two hexadecimal digits`,
		`lk\x5`:     `with two hexadecimal digits`,
		`lk\`:       `a backslash stands before`,
		`*?`:        `covers every key of the server`,
		`lockmig*`:  `covers the keys of the namespaces themselves`,
		`\x6cockm*`: `covers the keys of the namespaces themselves`,
	} {
		assert.ErrorContains(t, CheckPatterns([]string{Unescape(text)}), says, text)
	}
	assert.NoError(t, CheckPatterns([]string{`lk.\[*`, Unescape(`lk.\x5b\x5c\x2a?`), `*.order`}))
}
