package compat

import (
	"github.com/lockmigrate/lockmigrate/internal/client/random"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

// newValue returns a fresh bridge value of a dialect.
func newValue(source *random.Source, d *protocol.Dialect) string { return source.BridgeValue(d) }
