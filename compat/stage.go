package compat

import "github.com/lockmigrate/lockmigrate"

// Stage is a way to hold a key.
type Stage = lockmigrate.Stage

// The stages of a fleet, in their order.
const (
	Legacy = lockmigrate.StageLegacy
	Bridge = lockmigrate.StageBridge
	Modern = lockmigrate.StageModern
)
