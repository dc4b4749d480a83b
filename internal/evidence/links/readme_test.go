package links

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmesProgramsCompile vets each whole program of the README, as a reader would copy it.
func TestReadmesProgramsCompile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	programs := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, programs)
	for _, m := range programs {
		require.NoError(t, os.MkdirAll("testdata", 0o755)) // which ./... leaves out
		folder, err := os.MkdirTemp("testdata", "readme")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(folder); _ = os.Remove("testdata") })
		require.NoError(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(m[1]), 0o644))
		command := exec.Command("go", "vet", "./"+filepath.ToSlash(folder))
		output, err := command.CombinedOutput()
		assert.NoError(t, err, "%s", output)
		unformatted, err := exec.Command("gofmt", "-l", folder).Output()
		require.NoError(t, err)
		assert.Empty(t, string(unformatted), "gofmt")
	}
}
