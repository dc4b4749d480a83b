package links

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// folderName is a folder in the first column of the table of packages.
var folderName = regexp.MustCompile("`([^`]+)`")

// TestEveryPackageHasARow wants a row of ARCHITECTURE.md for each folder that holds Go code of the workspace, and a
// folder for each row.
func TestEveryPackageHasARow(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| folder |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	named := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		for _, m := range folderName.FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			folder := path.Clean(m[1])
			assert.False(t, named[folder], "two rows for %s", folder)
			named[folder] = true
			info, err := os.Stat(filepath.Join(root, folder))
			assert.True(t, err == nil && info.IsDir(), "ARCHITECTURE.md has a row for %s, which is no folder", folder)
		}
	}
	packages := packagesOf(t, root)
	assert.Greater(t, len(packages), 40)
	for _, folder := range packages {
		assert.True(t, named[folder], "ARCHITECTURE.md has no row for %s", folder)
	}
}

// packagesOf lists the folders of the workspace that hold Go code, tests included.
func packagesOf(t *testing.T, root string) (folders []string) {
	t.Helper()
	for line := range strings.Lines(list(t, "{{.ImportPath}}")) {
		folders = append(folders, path.Clean("."+strings.TrimPrefix(strings.TrimSpace(line), module)))
	}
	return folders
}
