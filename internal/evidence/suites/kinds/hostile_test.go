// This file tries what an attacker could put on keys and into names against the locks: they must
// stay calm, keep excluding, and print nothing raw. cmd/lockmigrate and internal/operate/serve have such tests of
// their own output.

package kinds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// names are keys that somebody chose in order to hurt.
var names = []string{
	"\x1b]0;owned\x07\x1b[2J\x1b[31mred", // terminal escapes
	"a\r\nSET victim 1\r\n",              // the protocol's line ends
	"*3\r\n$3\r\nSET\r\n$6\r\nvictim\r\n$1\r\n1\r\n",
	`"]] redis.call('SET','victim','1') --[[`, // Lua
	"'); redis.call('FLUSHALL') --",
	"{", "}", "{}", "a}b", "{}{a}", "{a}{b}", "}{", // hash tags
	"\x00", "a\x00b", "\xff\xfe\x80", // no text at all
	"<script>alert(1)</script>", "../../etc/passwd", "%s%n%d", "${jndi:ldap://x}", "\u202eexe.lock",
	strings.Repeat("k", 64<<10), // long
	" ", "\n", "key with blanks 5 channel",
}

// values are what somebody left on a key.
var values = []string{
	"", " ", "-1", "0", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "99999999999999999999999999",
	"1e308", "1e999", "nan", "inf", "-inf", "0x10", "1_000", "٣", "１２３",
	"5000000000000000000", "6000000000000000000x", "\x1b[2J", "a\r\nb", "\x00\x00", "'; redis.call('FLUSHALL') --",
	strings.Repeat("9", 1<<20), strings.Repeat("\xff", 1<<20),
}

// open makes a Locker of each kind that keeps its state in a way of its own, and returns what tries to acquire by it.
func open(t *testing.T, s *redistest.Server) map[string]func(ctx context.Context, key string) (lockmigrate.Lock, error) {
	t.Helper()
	all := map[string]func(ctx context.Context, key string) (lockmigrate.Lock, error){}
	for _, k := range kinds {
		if short := map[string]string{"legacy": "legacy", "compat at stage bridge": "bridge", "modern, fenced": "modern", "redisson": "redisson"}[k.name]; short != "" {
			l := k.open(t, []lockmigrate.Pool{s.Pool()}, terms{ttl: 10 * time.Second, server: s})
			t.Cleanup(func() { _ = l.Close() })
			all[short] = l.TryAcquire
		}
	}
	return all
}

// printable fails for text that a log or terminal could be hurt by.
func printable(t *testing.T, text string) {
	t.Helper()
	assert.True(t, utf8.ValidString(text), "no text: %q", text)
	assert.Less(t, len(text), 4096, "it fills a log")
	for _, r := range text {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e' {
			t.Errorf("a raw control character %q in %q", r, text)
			return
		}
	}
}

// Names lock their own key and nothing else, and are printed without harm.
func TestHostileNames(t *testing.T) {
	s := redistest.Real(t)
	lockers := open(t, s)
	for kind, try := range lockers {
		for i, name := range names {
			t.Run(fmt.Sprintf("%s/%d", kind, i), func(t *testing.T) {
				s.Do("FLUSHALL")
				s.Do("SET", "bystander", "1")
				held, err := try(t.Context(), name)
				require.NoError(t, err)
				assert.EqualValues(t, 1, s.Do("EXISTS", name), "it is the key that is taken")
				_, err = try(t.Context(), name)
				require.ErrorIs(t, err, lockmigrate.ErrNotAcquired)
				printable(t, err.Error())
				// What other name could it be mistaken for?
				for _, other := range []string{"victim", name + "x", "{" + name + "}", strings.TrimSpace(name) + "!"} {
					k, err := try(t.Context(), other)
					require.NoError(t, err, "another lock is free: %q", other)
					require.NoError(t, k.Release(t.Context()))
				}
				require.NoError(t, held.Release(t.Context()))
				err = held.Release(t.Context())
				require.Error(t, err)
				printable(t, err.Error())
				assert.EqualValues(t, 0, s.Do("EXISTS", name))
				assert.EqualValues(t, 0, s.Do("EXISTS", "victim"), "nothing was injected")
				assert.Equal(t, "1", s.Value("bystander"))
			})
		}
	}
}

// Values that nobody's client wrote never get anybody in where they could be a holder's, and are never
// printed raw or whole.
func TestHostileValues(t *testing.T) {
	s := redistest.Real(t)
	lockers := open(t, s)
	for kind, try := range lockers {
		for i, value := range values {
			t.Run(fmt.Sprintf("%s/%d", kind, i), func(t *testing.T) {
				s.Do("FLUSHALL")
				s.Do("SET", "k", value)
				ctx := redistest.Bounded(t, 5*time.Second)
				held, err := try(ctx, "k")
				if err != nil {
					printable(t, err.Error())
					assert.True(t, errors.Is(err, lockmigrate.ErrNotAcquired) || errors.Is(err, lockmigrate.ErrForeignFormat), err)
					assert.Equal(t, value, s.Value("k"), "what is held is left alone")
					return
				}
				// Taken over: it was an expiry of the past, in the way the old clients read it.
				assert.Contains(t, []string{"legacy", "bridge"}, kind, "%q", value)
				past := []string{"-1", "0"}
				if kind == "legacy" { // Long.parseLong takes the digits of any script
					past = append(past, "٣", "１２３")
				}
				assert.Contains(t, past, value)
				require.NoError(t, held.Release(ctx))
			})
		}
	}
}
