// Package sim runs fleets of lock clients in virtual time, for asking where clock skew, drift,
// pauses, latency and crashes break a lock.
//
// The clients run the real protocol machines (package protocol) through package session; the server
// is package redismodel. Every client has a clock of its own; a referee who sees true time judges.
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
// run that breaks can be cut down decision by decision (package shrink) and printed as a scenario
// (package scenario) that replays it.
package sim
