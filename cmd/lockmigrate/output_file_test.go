//go:build unix

package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// A file that cannot be written is told of before the hours that are to go into it.
func TestAFileThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	folder := t.TempDir()
	for _, file := range []string{filepath.Join(folder, "missing", "x"), folder} {
		for _, args := range [][]string{
			{"verify", "--for", "1m", "--out", file}, {"observe", "--for", "1m", "--profile", file},
			{"simulate", "--runs", "1000000", "--html", file},
		} {
			began := time.Now()
			stdout, stderr := expect(t, exitUsage, append(args, "--redis", s.URL())...)
			assert.Empty(t, stdout)
			assert.Contains(t, stderr, file+": ")
			assert.Less(t, time.Since(began), 20*time.Second)
		}
	}
}

// What a window has shown is printed, also when its file cannot be written any more.
func TestACertificateWithoutItsFile(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	folder := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(folder, 0o700))
	done := make(chan struct{})
	go func() {
		defer close(done)
		redistest.Await(t, "verify's looks", 20*time.Second, func() bool { return looksOf(t, s.URL()) >= 2 })
		assert.NoError(t, os.RemoveAll(folder))
	}()
	code, stdout, stderr := lockmigrateIn(t.Context(), false, "verify", "--json", "--for", "1s", "--longest-silence", "1s", "--out", filepath.Join(folder, "x"), "--redis", s.URL())
	<-done
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "no such file or directory")
	var v verified
	require.NoError(t, json.Unmarshal([]byte(stdout), &v), stdout)
	assert.Equal(t, "none-seen", v.Verdict, "%v", v.open())
}

// Files are replaced as a whole. A pipe or a device is written to and stays what it is, and so does a link.
func TestWhatIsNoFileIsNotReplaced(t *testing.T) {
	folder := t.TempDir()
	says := func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }
	kind := func(name string) os.FileMode {
		info, err := os.Lstat(name)
		require.NoError(t, err)
		return info.Mode().Type()
	}
	pipe, file, link := filepath.Join(folder, "pipe"), filepath.Join(folder, "file"), filepath.Join(folder, "link")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	read := make(chan string, 1)
	go func() {
		text, _ := os.ReadFile(pipe)
		read <- string(text)
	}()
	require.NoError(t, writable(pipe, ""))
	require.NoError(t, writeFile(pipe, says))
	require.Equal(t, os.ModeNamedPipe, kind(pipe))
	assert.Equal(t, "new", <-read)
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	require.NoError(t, os.Symlink(file, link))
	require.NoError(t, writeFile(link, says))
	assert.Equal(t, os.ModeSymlink, kind(link))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "new", string(text))
	left, err := filepath.Glob(filepath.Join(folder, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
