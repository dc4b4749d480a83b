package scripts_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

var updateClients = flag.Bool("update", false, "write the scripts into the clients of other languages")

// TestTheClientsHaveTheseScripts: the libraries for other languages send the very bytes that the Go library sends, so a server keeps each script once.
func TestTheClientsHaveTheseScripts(t *testing.T) {
	folders, err := filepath.Glob("../../clients/*/src/**/lua")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	of := map[string]string{}
	for _, s := range scripts.All() {
		of[s.Name] = s.Source
	}
	for _, folder := range folders {
		files, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			require.True(t, strings.HasSuffix(file.Name(), ".lua") && of[file.Name()] != "", "%s is no script", file.Name())
			redistest.Document(t, filepath.Join(folder, file.Name()), of[file.Name()], *updateClients)
		}
	}
}
