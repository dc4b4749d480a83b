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
// run that breaks can be cut down decision by decision (Shrink) and printed as a scenario that
// replays it. A shrunk run is minimal: leaving out any one event, or bringing any clock one step closer to the truth, makes it
// pass.
//
// # Grids
//
// A Grid is fleets, one for each clock skew, lease and hold time. Its report compares the cells that break with the prediction
// of the closed form.
//
// # Scenarios
//
// A Scenario is a fleet as text: one thing a line, comments after #.
//
//	# late_release.txt: a legacy holder stalls past its lease and then deletes.
//	run 30s
//	client a legacy lease=10s hold=1s..2s think=0s..1s ahead=11s
//	client b-* bridge count=3 ttl=9s renew=3s settle=50ms grace=500ms
//	network 100us/200us/1ms/5ms timeout=1s lose-reply=0.1%
//	at 5s a pauses 12s
//	expect overlaps = 0
//
// A duration where one is drawn may be fixed (1s), evenly spread (1s..2s), or given by its least,
// median, 99th percentile and greatest value (100us/200us/1ms/5ms). With lines that say when each client
// takes its turn, nothing is random:
//
//	latency 1ms
//	turn a at 0s holds 9s
//	command 3 of a request=5ms reply=2ms reply-lost
//
// docs/simulator.md has the whole language.
package sim
