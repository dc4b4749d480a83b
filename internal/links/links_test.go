// Package links sees to it that documents which point at tests point at tests that exist.
package links

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link  = regexp.MustCompile(`\[((?:Test|Fuzz)[A-Za-z0-9_]+)(?:: ([^\]]+))?\]\(([^)]+_test\.go)\)`)
	faint = regexp.MustCompile(`(?m)^\| .*\|$`)
)

func TestEveryGuaranteeLinksATestThatExists(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, document := range []string{"docs/guarantees.md", "SECURITY.md"} {
		text, err := os.ReadFile(filepath.Join(root, document))
		require.NoError(t, err)
		found := link.FindAllStringSubmatch(string(text), -1)
		assert.Greater(t, len(found), 10, document)
		for _, m := range found {
			source, err := os.ReadFile(filepath.Join(root, filepath.Dir(document), m[3]))
			if !assert.NoError(t, err, m[0]) {
				continue
			}
			assert.Contains(t, string(source), "func "+m[1]+"(", m[0])
			if m[2] != "" { // a case of it, by name
				assert.Contains(t, string(source), m[2], m[0])
			}
		}
		if document == "docs/guarantees.md" {
			for _, line := range faint.FindAllString(string(text), -1) {
				if !strings.HasPrefix(line, "|--") && strings.Contains(line, "_test.go") == strings.HasPrefix(line, "| fault |") && !strings.HasPrefix(line, "| who |") {
					t.Errorf("a line without a test: %s", line)
				}
			}
		}
	}
}
