// Command bench measures the locks of this project beside raw redigo and beside other libraries, all in
// one run, interleaved, and writes what it found as docs/benchmarks.md.
//
//	make bench                        everything; about six minutes
//	cd bench && go run . -only solo   one scenario, to the terminal
//	cd bench && go run . fleets       old clients and Go clients on one key: who gets which turns
//
// Every measurement runs in processes of its own, pinned to one core while the server has another; -cores has it otherwise. Every
// contestant takes its turn in every round, and a figure is the median over the rounds of the ratio to
// the baseline of the same round: what the machine does besides hits all of them. What is measured without
// contention is cut into slices of 25 ms, in which the contestants take turns, and a round's ratio is the
// median of those of its slices. Where it does much,
// `chrt -r 5 make bench`, as root, keeps it out.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := work(bufio.NewReader(os.Stdin), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench worker:", err)
			os.Exit(1)
		}
		return
	}
	do, args := run, os.Args[1:]
	if len(args) > 0 && args[0] == "fleets" {
		do, args = fleets, args[1:]
	}
	if err := do(args); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// Plan is what a run does.
type Plan struct {
	Rounds    int
	Stretch   time.Duration // of one measurement without contention
	Contended time.Duration // of one measurement with it
	Idle      time.Duration // of the measurement of waiters that wait
	Held      int           // locks that one process holds
	Waiters   int           // goroutines of one process that wait
	After     time.Duration // how long after the last lock the server is asked what is left
	Only      []string      // scenarios; all if empty
	Of        []string      // contestants; all if empty
}

func run(args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	plan := Plan{}
	flags.IntVar(&plan.Rounds, "rounds", 5, "how often every contestant takes its turn")
	flags.DurationVar(&plan.Stretch, "stretch", 500*time.Millisecond, "length of a measurement without contention")
	flags.DurationVar(&plan.Contended, "contended", 1500*time.Millisecond, "length of a measurement with contention")
	flags.DurationVar(&plan.Idle, "idle", 12*time.Second, "how long waiters are watched that wait")
	flags.IntVar(&plan.Held, "held", 100_000, "locks held at once by one process")
	flags.IntVar(&plan.Waiters, "waiters", 5000, "goroutines of one process that wait for one lock")
	flags.DurationVar(&plan.After, "after", time.Minute, "how long after the last lock the server is asked what is left")
	only := flags.String("only", "", "scenarios, separated by commas: "+strings.Join(scenarioNames(), ", "))
	of := flags.String("of", "", "contestants, separated by commas: "+strings.Join(contestantNames(), ", "))
	cores := flags.String("cores", "split", "split: server and clients have a core each; one: all have the same; all: nobody is pinned")
	out := flags.String("docs", "", "directory to write benchmarks.md and its charts to; empty: only to the terminal")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var known bool
	if placement, known = placements[*cores]; !known {
		return fmt.Errorf("no placement %q: there are split, one, all", *cores)
	}
	plan.Only, plan.Of = split(*only), split(*of)
	for _, name := range plan.Only {
		if !slices.Contains(scenarioNames(), name) {
			return fmt.Errorf("no scenario %q: there are %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	for _, name := range plan.Of {
		if !slices.Contains(contestantNames(), name) {
			return fmt.Errorf("no contestant %q: there are %s", name, strings.Join(contestantNames(), ", "))
		}
	}
	results, err := measure(plan, func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		return err
	}
	report := makeReport(plan, results, "cd bench && go run . "+strings.Join(args, " "))
	fmt.Print(report.text)
	if *out != "" {
		return report.write(*out)
	}
	return nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// Spec is what a worker process is told to do.
type Spec struct {
	Scenario   string
	Contestant string
	Addr       string
	Key        string
	Goroutines int
	Lockers    bool          // each goroutine has a client of its own, as it were a process
	Fresh      bool          // each acquisition has a goroutine of its own
	Section    time.Duration // how long a lock is held
	For        time.Duration
	Settle     time.Duration // the longest time until everybody has had a turn, which does not count
	Slices     int           // into how many the time is cut
	Shared     string        // the file that the processes of one measurement share
	Index      int           // of this process among them
	Held       int
}

// Result is what a worker process found.
type Result struct {
	Ops      int           // locks taken and given back
	Took     time.Duration // wall time
	CPU      time.Duration // of this process
	Server   time.Duration // CPU of the server; only where one process has it for itself
	Reads    int           // of sockets by the server, as Server
	Clients  int           // connections of this process to the server
	Mallocs  float64       // allocations for each lock
	Wait99   float64       // nanoseconds; of a slice
	Memory   float64       // bytes: from the system for all waiters, or left on the server for each lock
	Waits    []int64       // nanoseconds, one for each acquisition
	Handoffs []int64       // nanoseconds from a release to the next holder
	Turns    []int         // of each goroutine
	Slices   []Result      // what this is the sum of, where it was measured in slices
	Problem  string        // a lock that did not exclude, or was not released
}

func (r Result) String() string {
	text, _ := json.Marshal(r)
	return string(text)
}
