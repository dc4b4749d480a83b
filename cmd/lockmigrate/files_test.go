//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// TestJournalAfterATornLine: what a crash or a full disk has left of a line does not take the next one with it.
func TestJournalAfterATornLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "journal")
	for range 2 {
		kept, err := openJournal(file)
		require.NoError(t, err)
		require.NoError(t, encode(kept, "whole"))
		_, err = kept.WriteString(`"to`)
		require.NoError(t, err)
		require.NoError(t, kept.Close())
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "\"whole\"\n\"to\n\"whole\"\n\"to", string(text))
}
