package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

// oneProfile wants a profile's file, and nothing else.
func oneProfile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError("make one with: lockmigrate observe --profile FILE", "%s wants one PROFILE, not %d", cmd.Name(), len(args))
	}
	return nil
}

// openProfile reads a profile from a file.
func openProfile(path string) (profile.Profile, error) {
	return readFile(path, `"lockmigrate observe --profile FILE" writes one`, profile.Read)
}

// readFile reads a file that another command wrote.
func readFile[T any](path, how string, read func(io.Reader) (T, error)) (doc T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return doc, usageError(how, "%w", err)
	}
	defer file.Close()
	if doc, err = read(file); err != nil {
		err = usageError(how, "%s: %w", path, err)
	}
	return doc, err
}

// writable refuses files that cannot be written, before the work of hours that is to go into them. An empty name is no file.
func writable(files ...string) error {
	for _, file := range files {
		if file == "" || isDevice(file) {
			continue
		}
		temp, err := besides(file)
		if err != nil {
			return err
		}
		_ = temp.Close()
		_ = os.Remove(temp.Name())
	}
	return nil
}

// isDevice tells what is written to, and never replaced: a terminal, a pipe, /dev/null.
func isDevice(file string) bool {
	info, err := os.Stat(file)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// besides opens a file of another name in the folder of a file.
func besides(file string) (*os.File, error) {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return nil, usageError("name a file in it", "%s: is a directory", file)
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	var where *fs.PathError
	if errors.As(err, &where) {
		return nil, usageError("name another file", "%s: %w", file, where.Err)
	}
	return temp, err
}

// writeFile writes beside a file's place and moves it there, so that no reader finds half of it. What a link leads to is written.
func writeFile(file string, write func(io.Writer) error) error {
	if isDevice(file) {
		out, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err == nil {
			err = errors.Join(write(out), out.Close())
		}
		if err != nil {
			return failedError("name another file", "%w", err)
		}
		return nil
	}
	if linked, err := filepath.EvalSymlinks(file); err == nil {
		file = linked
	}
	temp, err := besides(file)
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	err = errors.Join(write(temp), temp.Close())
	if err == nil {
		err = os.Chmod(temp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		return failedError("check the folder and the space on the disk", "%w", err)
	}
	return nil
}

// openJournal opens or creates the file of --journal, which only grows: what a command changes, and what stood there before, one JSON object a line.
// An entry is one write with the end of its line: with the operating system when encode returns, so that a crash of this process does not lose it.
// Nobody else may read the file: values and rights may be of interest to others. A last line that a crash or a full disk has torn is ended, or the
// next entry would be a part of it.
func openJournal(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err == nil && !isDevice(name) {
		last := []byte{'\n'}
		if _, seekErr := file.Seek(-1, io.SeekEnd); seekErr == nil { // else it is empty
			_, _ = file.Read(last)
		}
		if last[0] != '\n' {
			_, err = file.WriteString("\n")
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, failedError("name a file that can be written with --journal", "%w", err)
	}
	return file, nil
}
