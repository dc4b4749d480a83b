//go:build race

package pipeline

// raceDetector is on: sync.Pool then forgets at random, so allocations cannot be counted.
const raceDetector = true
