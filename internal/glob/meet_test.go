package glob

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
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

// TestCovers wants every key of the narrower pattern in the wider one.
func TestCovers(t *testing.T) {
	for _, c := range []struct {
		wide, narrow string
		want         bool
	}{
		{"*", "cache:*", true}, {"cache:*", "cache:*", true}, {"cache:*", "cache:x*", true}, {"cache:*", "cach*", false},
		{"c?che:*", "c?che:x*", false}, {"cache:*", "cache:", true}, {"cache", "cache:*", false},
	} {
		assert.Equal(t, c.want, Covers(c.wide, c.narrow), "%q over %q", c.wide, c.narrow)
	}
}
