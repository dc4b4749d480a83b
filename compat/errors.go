package compat

import "github.com/lockmigrate/lockmigrate"

// The errors of this package; those of legacy and modern are the same values.
var (
	ErrNotAcquired    = lockmigrate.ErrNotAcquired
	ErrLost           = lockmigrate.ErrLost
	ErrUnknownOutcome = lockmigrate.ErrUnknownOutcome
	ErrForeignFormat  = lockmigrate.ErrForeignFormat
	ErrStage          = lockmigrate.ErrStage
	ErrReleased       = lockmigrate.ErrReleased
)

// Error is the type behind them: which operation, which key, what was seen.
type Error = lockmigrate.Error
