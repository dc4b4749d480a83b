package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// Nothing that stands on a server reaches a terminal raw: not in names, not in values, not in errors.
func TestHostileNamesAreNeverPrintedRaw(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	for _, name := range []string{
		"\x1b]0;owned\x07\x1b[2J", "a\r\nb", "\x00", "\xff\xfe", "\u202eexe.lock", "\u0085", "<script>alert(1)</script>", strings.Repeat("k", 60000),
	} {
		s.Do("SET", name, "1700000000000")
		s.Do("HSET", "h"+name, "\x1b[31m", "\x1b[2J")
	}
	for _, args := range [][]string{
		{"scan", "--all"}, {"scan", "--json", "--all"}, {"scan", "--match", "*"}, {"sweep", "--match", "*"}, {"doctor"}, {"doctor", "--json"},
		{"stage", "--namespace", "\x1b[2J"}, {"scan", "--match", "\x1b[2J*"},
	} {
		for _, terminal := range []bool{false, true} {
			_, out, diagnostics := lockmigrateIn(t.Context(), terminal, append(args, "--redis", s.URL())...)
			for stream, text := range map[string]string{"stdout": out, "stderr": diagnostics} {
				assert.True(t, utf8.ValidString(text), "%v %s", args, stream)
				for _, r := range text {
					// The status line of a terminal is ours: carriage return, and CSI K to clear it.
					ours := r == '\n' || terminal && (r == '\r' || r == '\x1b')
					if (r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e') && !ours {
						t.Errorf("%v prints %q raw on %s", args, r, stream)
						break
					}
				}
				assert.NotContains(t, text, "\x1b]", "%v: no title", args)
				assert.NotContains(t, text, "\x1b[2J", "%v: no clearing", args)
			}
			if args[len(args)-1] == "--json" || strings.Contains(strings.Join(args, " "), "--json") {
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "}\n") {
						require.True(t, json.Valid([]byte(line)), line)
					}
				}
			}
		}
	}
}
