//go:build race

package line

// raceDetector is on: sync.Pool then forgets at random, so allocations cannot be counted.
const raceDetector = true
