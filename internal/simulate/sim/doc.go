// Package sim runs fleets of lock clients in virtual time, for asking where clock skew, drift,
// pauses, latency and crashes break a lock.
//
// The clients run the real protocol machines (package protocol); they and the server are package model's. Every client has a clock of its own; a referee who sees true time judges.
//
// # Determinism
//
// A run is a function of its Fleet and its seed: one thread, one event queue ordered by time and then
// by the order of scheduling, integer arithmetic only, one generator per client. The same seed and
// version give the same trace, byte for byte, on any machine and at any GOMAXPROCS. Nothing here
// reads a clock or ranges over a map (lint_test.go).
//
// # Shrinking
//
// Every random decision of a run can be written down as a Plan; a run from a Plan draws nothing. So a
// run that breaks can be cut down decision by decision (Shrink) and printed as a scenario (package scenario) that
// replays it. A shrunk run is minimal: leaving out any one event, or bringing any clock one step closer to the truth, makes it
// pass.
//
// # Grids
//
// A Sweep runs fleets over a Grid of clock skew against lease and hold time. It compares the cells that break with the prediction
// of the closed form.
package sim
