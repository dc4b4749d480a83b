// Package journal keeps what a command changes, and what stood there before, in a file that only grows.
package journal

import (
	"encoding/json"
	"os"
)

// Journal is a file of entries, one JSON object a line.
type Journal[E any] struct{ file *os.File }

// Open opens or creates a journal. Nobody else may read it: values and rights may be of interest to others.
// A last line that a crash or a full disk has torn is ended, or the next entry would be a part of it.
func Open[E any](name string) (*Journal[E], error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	last := []byte{'\n'}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		_, _ = file.ReadAt(last, info.Size()-1)
	}
	if last[0] != '\n' {
		if _, err := file.WriteString("\n"); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
	return &Journal[E]{file}, nil
}

// Write appends an entry, in one write with the end of its line. The line is with the operating system when it returns: a crash of this
// process does not lose it.
func (j *Journal[E]) Write(e E) error {
	out := json.NewEncoder(j.file)
	out.SetEscapeHTML(false) // a rule is full of &
	return out.Encode(e)
}

// Sync makes the journal durable.
func (j *Journal[E]) Sync() error { return j.file.Sync() }

// Close makes it durable and closes it.
func (j *Journal[E]) Close() error {
	err := j.file.Sync()
	if closeErr := j.file.Close(); err == nil {
		err = closeErr
	}
	return err
}
