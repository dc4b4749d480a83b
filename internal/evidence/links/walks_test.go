package links

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// walkStep is a step of a walk: a file, and what it holds.
var walkStep = regexp.MustCompile("`([a-z0-9_/]+\\.(?:go|lua|txt)):? ?([^`]*)`")

// TestTheWalksLeadThroughTheCode keeps the walks of ARCHITECTURE.md true: each file exists and has the function, type or table
// that the walk names, and no walk is longer than the bound that the code was built for.
func TestTheWalksLeadThroughTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	require.NoError(t, err)
	_, walks, found := strings.Cut(string(text), "## Three walks")
	require.True(t, found)
	walks, _, _ = strings.Cut(walks, "\n## ")
	longest := map[string]int{"Acquire beside an old client": 15, "Why was it lost?": 15, "A new dialect": 5, "A new script argument": 10}
	seen := 0
	for _, walk := range strings.Split(walks, "\n**")[1:] {
		title, _, _ := strings.Cut(walk, "**")
		files := map[string]bool{}
		for _, step := range walkStep.FindAllStringSubmatch(walk, -1) {
			files[step[1]] = true
			seen++
			isThere(t, root, step)
		}
		said := regexp.MustCompile(`\((\d+) files\)`).FindStringSubmatch(title)
		if assert.NotNil(t, said, "the walk %q does not say how many files it has", title) {
			assert.Equal(t, said[1], strconv.Itoa(len(files)), "files of the walk %q", title)
		}
		for name, most := range longest {
			if strings.HasPrefix(title, name) {
				assert.LessOrEqual(t, len(files), most, "files of the walk %q", name)
				assert.NotEmpty(t, files, name)
				delete(longest, name)
			}
		}
	}
	assert.Empty(t, longest, "walks that are missing")
	assert.Greater(t, seen, 20, "steps")
}

// isThere wants the file of a step, and in it what the step names.
func isThere(t *testing.T, root string, step []string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, step[1]))
	if !assert.NoError(t, err, step[0]) {
		return
	}
	for _, name := range strings.Split(step[2], ",") {
		if name = strings.TrimSpace(name); name != "" {
			declared := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const |\t|local function )` + regexp.QuoteMeta(name) + `\b`)
			assert.True(t, declared.Match(source) || strings.HasSuffix(step[1], ".lua") && strings.Contains(string(source), name), "%s has no %s", step[1], name)
		}
	}
}

// TestTheProtocolsPageLeadsToTheCode wants the file and the function behind each block of docs/protocol.md.
func TestTheProtocolsPageLeadsToTheCode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "protocol.md"))
	require.NoError(t, err)
	steps := walkStep.FindAllStringSubmatch(string(text), -1)
	assert.Greater(t, len(steps), 10)
	for _, step := range steps {
		isThere(t, root, step)
	}
}
