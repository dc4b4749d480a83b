package pools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// outside makes a module that is no part of this repository, with the versions that the suites have.
func outside(t *testing.T) (folder string, do func(args ...string)) {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)
	folder = t.TempDir()
	text, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	module := regexp.MustCompile(`(?m)^module .*`).ReplaceAllString(string(text), "module shop")
	module = regexp.MustCompile(`=> (\.\./)+\.\.`).ReplaceAllString(module, "=> "+root)
	module = regexp.MustCompile(`=> (\.\./)+`).ReplaceAllString(module, "=> "+root+"/")
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.mod"), []byte(module), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "go.sum"), sums, 0o644))
	return folder, func(args ...string) {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "go %v: %s", args, out)
	}
}

// TestAServiceOutside writes down the programs of README, the service of docs/services.md and its test, as a reader would, and runs what is a
// test; and it does so with the examples that README links.
func TestAServiceOutside(t *testing.T) {
	folder, do := outside(t)
	write := func(name, text string) {
		file := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	page, err := os.ReadFile("../../../../docs/services.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```go\n// file: (\\S+)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, files, 3)
	for _, file := range files {
		write(file[1], file[2])
	}
	readme, err := os.ReadFile("../../../../README.md")
	require.NoError(t, err)
	programs := regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, programs)
	for i, program := range programs {
		write(fmt.Sprintf("program%d/main.go", i), program[1])
	}
	linked := regexp.MustCompile(`\]\(([\w/]+/example\w*_test\.go)\)`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, linked)
	for _, link := range linked {
		folder := filepath.Dir(link[1])
		all, err := filepath.Glob(filepath.Join("../../../..", folder, "example*_test.go")) // they share a server
		require.NoError(t, err)
		for _, file := range all {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			write("examples/"+strings.ReplaceAll(folder, "/", "_")+"/"+filepath.Base(file), string(text))
		}
	}
	do("vet", "./...")
	unformatted, err := exec.Command("gofmt", "-l", folder).CombinedOutput()
	require.NoError(t, err)
	require.Empty(t, string(unformatted), "gofmt")
	do("test", "./ship", "./examples/...")
}
