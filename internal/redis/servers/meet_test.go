package servers

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMeet compares the key that Meet finds, or its no, with Match over all short keys.
func TestMeet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "b", "*", "?", "[ab]", "[^a]", "\\*", "*"}
	var keys []string
	alphabet := "abc*"
	for _, x := range alphabet {
		keys = append(keys, string(x))
		for _, y := range alphabet {
			keys = append(keys, string(x)+string(y))
			for _, z := range alphabet {
				keys = append(keys, string(x)+string(y)+string(z))
			}
		}
	}
	keys = append(keys, "")
	pattern := func() string {
		text := ""
		for range random.IntN(4) {
			text += parts[random.IntN(len(parts))]
		}
		return text
	}
	met := 0
	for range 5000 {
		a, b := pattern(), pattern()
		key, ok := Meet(a, b)
		if ok {
			met++
			assert.True(t, Match(a, key) && Match(b, key), "%q and %q do not meet in %q", a, b, key)
			continue
		}
		for _, k := range keys {
			assert.False(t, Match(a, k) && Match(b, k), "%q and %q meet in %q", a, b, k)
		}
	}
	assert.Greater(t, met, 500)
	assert.Less(t, met, 4500)
}

// TestMatch has the cases that a namespace lives by.
func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"lock.*", "lock.", true}, {"lock.*", "lock.a", true}, {"lock.*", "Lock.a", false}, {"lock.*", "lock", false},
		{"*.lock", "a.lock", true}, {"*.lock", "a.lock.b", false}, {"a*b*c", "abc", true}, {"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXcYb", false}, {"a?c", "abc", true}, {"a?c", "ac", false}, {"a*", "a", true}, {"a", "a", true}, {"a", "ab", false},
		{"*a?", "xxab", true}, {"*a?", "a", false}, {"a**b", "ab", true}, {"a*a", "a", false}, {"*", "anything", true},
	} {
		assert.Equal(t, c.want, Match(c.pattern, c.key), "%q and %q", c.pattern, c.key)
	}
}

// TestMeetTells has the patterns of namespaces that may have a key in common.
func TestMeetTells(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"lock.*", "lock.order.*", true}, {"lock.*", "bills.*", false}, {"*.order", "lock.*", true}, {"a?c", "ab*", true},
		{"a", "a", true}, {"a", "b", false}, {"a*b", "b*a", false}, {"*a*", "*b*", true}, {"??", "a*", true}, {"?", "ab", false},
		{"*a*a*a*a*a*b", "a*a*a*a*a*a*", true}, {"", "*", true}, {"", "?", false},
	} {
		_, ok := Meet(c.a, c.b)
		_, back := Meet(c.b, c.a)
		assert.Equal(t, [2]bool{c.want, c.want}, [2]bool{ok, back}, "%q and %q, and the other way round", c.a, c.b)
	}
}

// TestCovers wants every key of the narrower pattern in the wider one, and a no in each case of doubt.
func TestCovers(t *testing.T) {
	for _, c := range []struct {
		outer, inner string
		want         bool
	}{
		{"lock.order.*", "lock.order.*", true}, {"lock.*", "lock.order.*", true}, {"*", "lock.order.*", true}, {"*order*", "lock.order.*", true},
		{"lock.order.9*", "lock.order.*", false}, {"lock.order.*", "lock.*", false}, {"lock.order.?", "lock.order.*", false},
		{"lock.order.*", "lock.order.?", true}, {"lock.order.?", "lock.order.?", true}, {"lock.order.?", "lock.order.1", true}, {"lock.order.1", "lock.order.?", false},
		{"a*b*c", "a*c", false}, {"a*c", "a*b*c", true}, {"*a", "*aa", true}, {"*aa", "*a", false}, {"a*", "a", true}, {"a", "a*", false},
		{"[ab]*", "[ab]*", true}, {"[ab]*", "a*", false}, {"a*", `a\*`, true}, {"a*", "a[bc]", true}, {"?*", "a[bc]", false}, {"", "", true}, {"**", "*", true}, {"?*", "*", false}, {"*?", "?", true},
		{"*", "cache:*", true}, {"cache:*", "cache:*", true}, {"cache:*", "cache:x*", true}, {"cache:*", "cach*", false},
		{"c?che:*", "c?che:x*", true}, {"cache:*", "cache:", true}, {"cache", "cache:*", false},
	} {
		assert.Equal(t, c.want, Covers(c.outer, c.inner), "%q in %q", c.inner, c.outer)
	}
	// Whatever lies within by the rule lies within by the server's matching.
	const letters = "aab**?[]\\"
	random := rand.New(rand.NewPCG(1, 2))
	text := func(from string) string {
		b := make([]byte, random.IntN(6))
		for i := range b {
			b[i] = from[random.IntN(len(from))]
		}
		return string(b)
	}
	within := 0
	for range 20_000 {
		outer, inner := text(letters), text(letters)
		if !Covers(outer, inner) {
			continue
		}
		within++
		for range 20 {
			if key := text("ab"); Match(inner, key) {
				require.True(t, Match(outer, key), "%q matches %q, not %q", key, inner, outer)
			}
		}
	}
	assert.Greater(t, within, 1000)
}

func TestUncovered(t *testing.T) {
	for _, c := range []struct {
		outer, inner []string
		missing      string
		some         bool
	}{
		{[]string{"a*", "c*"}, []string{"a1", "b1"}, "b1", true},
		{[]string{"zz", "a*", "b?"}, []string{"a1", "b1", "zz"}, "", false},
		{[]string{"a*"}, []string{""}, "", true},
		{nil, []string{"a1"}, "", false}, // no pattern stands for every key
	} {
		missing, some := Uncovered(c.outer, c.inner)
		assert.Equal(t, c.some, some, "%q in %q", c.inner, c.outer)
		assert.Equal(t, c.missing, missing)
	}
}
