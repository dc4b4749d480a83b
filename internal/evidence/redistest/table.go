package redistest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rows reads a table of testdata: a row a line, with blanks between its cells. A # before a blank begins a comment.
func Rows(t testing.TB, file string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line, _, _ = strings.Cut(" "+line, " # "); len(strings.Fields(line)) > 0 {
			rows = append(rows, strings.Fields(line))
		}
	}
	require.NotEmpty(t, rows, file)
	return rows
}
