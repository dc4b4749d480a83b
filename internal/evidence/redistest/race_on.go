//go:build race

package redistest

// Raced tells that the race detector watches.
const Raced = true
