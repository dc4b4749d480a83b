package main

import (
	"fmt"
	"slices"
)

// table is one table of the report: the contestants of a scenario with some figures.
type table struct {
	title, scenario, text string
	figures               []figure
	chart                 int  // which figure is drawn, plus one; 0 for none
	log                   bool // on a logarithmic scale
}

var tables = []table{
	{
		title: "A free lock, one goroutine", scenario: "solo", chart: 1,
		text: "Acquire and release, again and again. CPU is that of client and server together, so that nothing is won by moving work. " +
			"The connections of `rawconn.DialContext` keep the Go runtime's monitor thread asleep: by `perf stat`, a pair of commands takes no futex call " +
			"instead of 2.0, and no nanosleep instead of 1.1. It takes 2.1 switches of threads instead of 5.9; reads, writes and epoll calls are as many.",
		figures: []figure{
			{what: "CPU, all of it / raw", of: wholeCPU, base: "raw", digits: 2},
			{what: "client µs", of: clientCPU, digits: 1},
			{what: "server µs", of: serverCPU, digits: 1},
			{what: "allocations", of: allocs, digits: 1},
		},
	},
	{
		title: "Free locks, 64 goroutines, a key each", scenario: "crowd", chart: 1,
		text: "Locks taken and given back per second, in one process on one core.",
		figures: []figure{
			{what: "locks/s / raw", of: rate, base: "raw", digits: 2},
			{what: "locks/s", of: rate, digits: 0},
			{what: "CPU, all of it / raw", of: wholeCPU, base: "raw", digits: 2},
			{what: "server µs", of: serverCPU, digits: 1},
		},
	},
	{
		title: "The same, a goroutine for each acquisition", scenario: "fresh",
		text: "64 at a time, each on a stack that is still to grow.",
		figures: []figure{
			{what: "locks/s / raw", of: rate, base: "raw", digits: 2},
			{what: "locks/s", of: rate, digits: 0},
			{what: "locks/s / 64 goroutines that last", of: rate, beside: "crowd", digits: 2},
		},
	},
	{
		title: "Free locks, 1 to 256 goroutines, a key each", scenario: width(widths[0]),
		text:    "Locks taken and given back per second / raw, by the number of goroutines. They share one connection, where raw has one for each.",
		figures: eachWidth(widths, width, figure{of: rate, base: "raw", digits: 2}),
	},
	{
		title: "The same, not pinned", scenario: freeWidth(freeWidths[0]),
		text:    "Server and client may use every core, so the client's threads compete with the server.",
		figures: eachWidth(freeWidths, freeWidth, figure{of: rate, base: "raw", digits: 2}),
	},
	{
		title: "The same pinned, the slowest in a hundred", scenario: width(widths[0]),
		text:    "p99 of the time that a lock is taken and given back in / raw.",
		figures: eachWidth(widths, width, figure{of: slowest, base: "raw", digits: 2}),
	},
	{
		title: "The same, where few share", scenario: width(2),
		text: "What a lock costs each side with 2, 4 and 8 goroutines. Busy is the share of the time in which its core works. " +
			"Reads are the server's for each lock: 2 where each command comes alone.",
		figures: slices.Concat(fewFigures(2), fewFigures(4), fewFigures(8)),
	},
	{
		title: "Handing over to another process", scenario: "handoff", chart: 1, log: true,
		text: "Two processes pass one lock to and fro; from the moment before the release to the moment when the other has it.",
		figures: []figure{
			{what: "p50 / blpop", of: handoff50, base: "blpop", digits: 2},
			{what: "p99 / blpop", of: handoff99, base: "blpop", digits: 2},
			{what: "p50 µs", of: micros(handoff50), digits: 0},
			{what: "p99 µs", of: micros(handoff99), digits: 0},
		},
	},
	{
		title: "The same when an old client releases", scenario: "old-del",
		text: "The holder is an unmodified client of the old scheme that sends DEL. No other library hears it. `blpop` is the yardstick from the table above, and `bare` is the floor: what any client must do.",
		figures: []figure{
			{what: "p50 / blpop", of: handoff50, base: "blpop", digits: 2},
			{what: "p99 / blpop", of: handoff99, base: "blpop", digits: 2},
			{what: "p50 / bare", of: handoff50, base: "bare", digits: 2},
			{what: "p50 µs", of: micros(handoff50), digits: 0},
		},
	},
	{
		title: "Everybody wants it: 4 processes with 4 goroutines", scenario: "turns-4x4", chart: 1,
		text: "Each holds the lock for 1 ms and asks again at once. Where waiters poll, the one who releases mostly gets the lock back itself: a turn, but no handoff, as most / fewest shows.", figures: turnFigures,
	},
	{
		title: "Everybody wants it: 1 process with 16 goroutines", scenario: "turns-1x16",
		text: "The same within one process.", figures: turnFigures,
	},
	{
		title: "Everybody wants it: 32 processes with 1 goroutine", scenario: "turns-32x1",
		text: "The same, each in a process of its own.", figures: turnFigures,
	},
	{
		title: "400 Lockers want it", scenario: "lockers-400",
		text: "One process with 400 Lockers, each with its own connections as 400 processes have them, beside one with 4. Each holds the lock for 1 ms.",
		figures: []figure{
			{what: "turns/s / 4 Lockers", of: rate, beside: "lockers-4", digits: 2},
			{what: "turns/s", of: rate, digits: 0},
		},
	},
	{
		title: "Memory of waiters", scenario: "waiters",
		text:    "Many goroutines of one process wait for one lock (5,000 unless -waiters says otherwise): what the Go runtime takes from the system for them.",
		figures: []figure{{what: "MiB from the system", of: mebibytes, digits: 1}},
	},
	{
		title: "What is left on the server", scenario: "left",
		text:    "Distinct locks are taken and given back once. A minute later (-after) the remaining keys are added up by MEMORY USAGE.",
		figures: []figure{{what: "bytes a lock", of: func(s Sample) float64 { return s.Memory }, digits: 1}},
	},
	{
		title: "Waiting", scenario: "idle", chart: 1, log: true,
		text:    "One process holds a lock with a TTL of 30 s, 8 goroutines in 4 others wait for it. Round trips are reads of a socket by the server.",
		figures: []figure{{what: "round trips/s", of: tripRate, digits: 2}},
	},
	{
		title: "Holding many", scenario: "held",
		text: "One process holds locks with a TTL of 30 s and renews them.",
		figures: []figure{
			{what: "locks", of: func(s Sample) float64 { return float64(s.Ops) }, digits: 0},
			{what: "client's share of a core", of: cores, digits: 3},
			{what: "server's share of a core", of: serverCores, digits: 3},
			{what: "connections", of: func(s Sample) float64 { return float64(s.Clients) }, digits: 0},
		},
	},
}

// eachWidth repeats a figure for each number of goroutines.
func eachWidth(widths []int, name func(int) string, f figure) (all []figure) {
	for _, n := range widths {
		f.what, f.in = fmt.Sprint(n), name(n)
		all = append(all, f)
	}
	return all
}

// fewFigures say which side n goroutines keep busy.
func fewFigures(n int) []figure {
	in, name := width(n), func(what string) string { return fmt.Sprintf("%d: %s", n, what) }
	return []figure{
		{what: name("locks/s"), in: in, of: rate, digits: 0},
		{what: name("client µs"), in: in, of: clientCPU, digits: 1},
		{what: name("server µs"), in: in, of: serverCPU, digits: 1},
		{what: name("client busy"), in: in, of: cores, digits: 2},
		{what: name("server busy"), in: in, of: serverCores, digits: 2},
		{what: name("reads"), in: in, of: func(s Sample) float64 { return float64(s.Reads) / float64(max(s.Ops, 1)) }, digits: 2},
	}
}

var turnFigures = []figure{
	{what: "handoffs/s / blpop", of: rate, base: "blpop", digits: 2},
	{what: "handoffs/s", of: rate, digits: 0},
	{what: "most / fewest turns", of: unevenness, digits: 2},
	{what: "p99 wait / blpop", of: wait99, base: "blpop", digits: 2},
	{what: "p99 wait ms", of: millis(wait99), digits: 0},
	{what: "round trips each", of: roundTrips, digits: 1},
}
