package sweep

import (
	"encoding/json"
	"os"
	"unicode/utf8"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// describe fills in what is known of a key.
func (e *Entry) describe(key string, value []byte, f census.Finding, now protocol.Instant) {
	e.Format, e.State = string(f.Format), string(f.State)
	if !utf8.ValidString(key) {
		e.KeyBytes = []byte(key)
	}
	e.Value = string(value)
	if !utf8.Valid(value) {
		e.ValueRaw = value
	}
	if f.HasExpiry {
		e.ExpiredMS = now.Sub(f.Expires).Milliseconds()
	}
}

func (e *Entry) key() string {
	if e.KeyBytes != nil {
		return string(e.KeyBytes)
	}
	return e.Key
}

func (e *Entry) value() string {
	if e.ValueRaw != nil {
		return string(e.ValueRaw)
	}
	return e.Value
}

// Journal is a file of entries, one JSON object a line, that only grows.
type Journal struct{ file *os.File }

// OpenJournal opens or creates a journal.
func OpenJournal(name string) (*Journal, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // values may be of interest to others
	if err != nil {
		return nil, err
	}
	return &Journal{file}, nil
}

// Write appends an entry. The line is with the operating system when it returns: a crash of this process
// does not lose it.
func (j *Journal) Write(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = j.file.Write(append(line, '\n'))
	return err
}

// Close makes the journal durable and closes it.
func (j *Journal) Close() error {
	err := j.file.Sync()
	if closeErr := j.file.Close(); err == nil {
		err = closeErr
	}
	return err
}
