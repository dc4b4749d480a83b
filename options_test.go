package lockmigrate_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
	"github.com/lockmigrate/lockmigrate/modern"
	"github.com/lockmigrate/lockmigrate/modern/quorum"
	"github.com/lockmigrate/lockmigrate/modern/redisson"
)

// TestOptions plays testdata/options.txt. Random combinations of options are tried in internal/evidence/suites/kinds.
func TestOptions(t *testing.T) {
	kinds := map[string]func(t *testing.T, pool lockmigrate.Pool, assignments []string) error{
		"legacy":   opened(legacy.New),
		"modern":   opened(modern.New),
		"redisson": opened(redisson.New),
		"compat":   opened(compat.New),
		"quorum": opened(func(pool lockmigrate.Pool, o modern.Options) (lockmigrate.Locker, error) {
			return quorum.New([]lockmigrate.Pool{pool}, o)
		}),
	}
	pool := redistest.Mini(t).Pool()
	text, err := os.ReadFile("testdata/options.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		head, want, isRow := strings.Cut(strings.TrimSpace(line), "=>")
		if !isRow {
			continue
		}
		words, want := strings.Fields(head), strings.TrimSpace(want)
		first := 0 // assignment
		for first < len(words) && kinds[words[first]] != nil {
			first++
		}
		require.Positive(t, first, line)
		for _, kind := range words[:first] {
			err := kinds[kind](t, pool, words[first:])
			if want == "works" {
				assert.NoError(t, err, "%s: %s", kind, line)
				continue
			}
			if assert.ErrorContains(t, err, want, "%s: %s", kind, line) {
				assert.True(t, strings.HasPrefix(err.Error(), kind+": "), "%v", err)
			}
		}
	}
}

// opened is what a package's New says to options.
func opened[O any, L interface{ Close() error }](open func(lockmigrate.Pool, O) (L, error)) func(*testing.T, lockmigrate.Pool, []string) error {
	return func(t *testing.T, pool lockmigrate.Pool, assignments []string) error {
		var o O
		for _, a := range assignments {
			assign(t, reflect.ValueOf(&o).Elem(), a)
		}
		l, err := open(pool, o)
		if err == nil {
			_ = l.Close()
		}
		return err
	}
}

// assign sets one option: "TTL=1s", or a field of one: "Dialect.Name=jedis-ms".
func assign(t *testing.T, options reflect.Value, assignment string) {
	t.Helper()
	path, value, _ := strings.Cut(assignment, "=")
	for name := range strings.SplitSeq(path, ".") {
		options = options.FieldByName(name)
		require.True(t, options.IsValid(), "no option: %s", assignment)
	}
	var err error
	switch option := options.Addr().Interface().(type) {
	case *time.Duration:
		*option, err = time.ParseDuration(value)
	case *string:
		*option = strings.ReplaceAll(value, "%20", " ")
	default:
		_, err = fmt.Sscan(value, option)
	}
	require.NoError(t, err, assignment)
}
