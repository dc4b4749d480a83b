package mutate

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var seeds = [][]any{{"MOVED 1 a:1", int64(7), true}, {"ASK 16383 [::1]:6379", int64(-1), false}}

func TestTheSameInputsInEveryRun(t *testing.T) {
	a, b := grow("FuzzA", seeds, 500), grow("FuzzA", seeds, 500)
	assert.Equal(t, a, b)
	assert.NotEqual(t, a, grow("FuzzB", seeds, 500))
	assert.Equal(t, a[:100], grow("FuzzA", seeds, 100), "more inputs do not change the first ones")
	assert.Equal(t, "MOVED 1 a:1", seeds[0][0], "the seeds stay")
	known := map[string]bool{}
	for _, args := range a {
		require.Len(t, args, 3)
		known[fmt.Sprintf("%q", args)] = true
	}
	assert.Greater(t, len(known), 450, "hardly any twice")
}

// TestFaultsFarFromTheSeedsAreFound plants parsers with a fault that no seed meets.
func TestFaultsFarFromTheSeedsAreFound(t *testing.T) {
	texts := [][]any{{[]byte("MOVED 1 a:1")}, {[]byte("ASK 16383 [::1]:6379")}}
	for name, fault := range map[string]func(string) bool{
		"a bracket within the host": func(s string) bool {
			return regexp.MustCompile(`^ASK [0-9]+ [^ ]*[0-9a-z]\[[^ ]*:[0-9]+$`).MatchString(s)
		},
		"a slot that is too large":    func(s string) bool { return regexp.MustCompile(`^MOVED (16384|[0-9]{6,}) a:1$`).MatchString(s) },
		"nothing behind the word":     func(s string) bool { return s == "MOVED" || s == "ASK" },
		"a NUL byte":                  func(s string) bool { return strings.Contains(s, "\x00") },
		"bytes that are no UTF-8":     func(s string) bool { return strings.ToValidUTF8(s, "") != s },
		"an empty reply":              func(s string) bool { return s == "" },
		"a number that overflows":     func(s string) bool { return strings.Contains(s, "9223372036854775808") },
		"one seed continued by other": func(s string) bool { return strings.HasPrefix(s, "MOVED") && strings.HasSuffix(s, ":6379") },
	} {
		found := slices.ContainsFunc(grow("FuzzRedirect", texts, 2000), func(args []any) bool { return fault(string(args[0].([]byte))) })
		assert.True(t, found, name)
	}
}

// TestEveryFuzzTargetGrows: a target that is forgotten would run its seeds alone.
func TestEveryFuzzTargetGrows(t *testing.T) {
	targets, grown := 0, 0
	root := filepath.Join("..", "..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		here := len(regexp.MustCompile(`(?m)^func Fuzz`).FindAll(text, -1))
		with := len(regexp.MustCompile(`mutate\.New\(f\)`).FindAll(text, -1))
		assert.Equal(t, here, with, path)
		targets, grown = targets+here, grown+with
		return nil
	}))
	assert.Equal(t, targets, grown)
	assert.GreaterOrEqual(t, targets, 12)
}
