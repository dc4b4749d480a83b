package sweep

import (
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
