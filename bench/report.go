package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// figure is what is read off the samples of a contestant.
type figure struct {
	what   string
	in     string // the scenario, if it is not the table's
	of     func(s Sample) float64
	base   string // a ratio to this contestant's of the same round; empty for the plain value
	beside string // a ratio to the same contestant's in this scenario
	digits int
}

// value is a median with its spread; n is how many rounds it is of, 0 for none.
type value struct {
	mid, low, high float64
	n              int
}

// over reads a figure off the samples of one scenario.
func (r Results) over(scenario, contestant string, f figure) value {
	samples, base := r[scenario][contestant], r[scenario][f.base]
	if f.beside != "" {
		base = r[f.beside][contestant]
	}
	var all []float64
	for i, s := range samples {
		if s.Problem != "" {
			continue
		}
		v := f.of(s)
		if f.base != "" || f.beside != "" {
			if i >= len(base) {
				continue
			}
			v = ratio(f.of, s, base[i])
		}
		if !math.IsNaN(v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return value{}
	}
	slices.Sort(all)
	return value{mid: median(all), low: all[0], high: all[len(all)-1], n: len(all)}
}

// median of what is sorted.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (v value) text(digits int) string {
	switch {
	case v.n == 0:
		return "-"
	case math.IsInf(v.mid, 0):
		return "∞"
	case v.n == 1:
		return number(v.mid, digits)
	}
	return fmt.Sprintf("%s (%s to %s)", number(v.mid, digits), number(v.low, digits), number(v.high, digits))
}

func number(f float64, digits int) string {
	switch {
	case math.IsInf(f, 0):
		return "∞"
	case math.Abs(f) >= 1000:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 100:
		return fmt.Sprintf("%.*f", min(digits, 1), f)
	}
	return fmt.Sprintf("%.*f", digits, f)
}

func quantile(ns []int64, q float64) float64 {
	if len(ns) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(ns))
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

func perOp(d time.Duration, s Sample) float64 { return float64(d) / float64(max(s.Ops, 1)) }

func wholeCPU(s Sample) float64    { return perOp(s.CPU+s.Server, s) }
func clientCPU(s Sample) float64   { return perOp(s.CPU, s) / 1e3 }
func serverCPU(s Sample) float64   { return perOp(s.Server, s) / 1e3 }
func mebibytes(s Sample) float64   { return s.Memory / (1 << 20) }
func allocs(s Sample) float64      { return s.Mallocs }
func rate(s Sample) float64        { return float64(s.Ops) / s.Took.Seconds() }
func handoff50(s Sample) float64   { return quantile(s.Handoffs, 0.5) }
func handoff99(s Sample) float64   { return quantile(s.Handoffs, 0.99) }
func wait99(s Sample) float64      { return quantile(s.Waits, 0.99) }
func slowest(s Sample) float64     { return s.Wait99 }
func roundTrips(s Sample) float64  { return float64(s.Spent.reads) / float64(max(s.Ops, 1)) }
func tripRate(s Sample) float64    { return float64(s.Spent.reads) / s.Took.Seconds() }
func serverCores(s Sample) float64 { return float64(s.Server) / float64(s.Took) }
func cores(s Sample) float64       { return float64(s.CPU) / float64(s.Took) }

// unevenness is how many turns the luckiest worker had for one of the unluckiest.
func unevenness(s Sample) float64 {
	if len(s.Turns) == 0 {
		return math.NaN()
	}
	return float64(slices.Max(s.Turns)) / float64(slices.Min(s.Turns))
}

func micros(of func(Sample) float64) func(Sample) float64 {
	return func(s Sample) float64 { return of(s) / 1e3 }
}

func millis(of func(Sample) float64) func(Sample) float64 {
	return func(s Sample) float64 { return of(s) / 1e6 }
}

// shown is a figure of a scenario's table.
func shown(scenario string, n int) figure {
	i := slices.IndexFunc(tables, func(t table) bool { return t.scenario == scenario })
	return tables[i].figures[n]
}

// goal is a line of what this project set out to reach.
type goal struct {
	what, scenario, contestant string
	figure                     figure
	least                      bool // the figure is to be at least that, not at most
	bound                      float64
	peer                       string // the best of the other libraries when the goal was set
	limit                      string // what stands between the figure and the goal, as far as it was found out
}

var goals = []goal{
	{"acquire + release, one goroutine, whole CPU / raw", "solo", "modern", shown("solo", 0), false, 1.05, "1.13", "Over redigo's own connections (modern-plain) the same code is dearer than raw by what it does in this process: 4 to 6 µs in a loop against a connection in memory (`go test ./modern -run - -bench InMemory`), of which the shared line is 1.5; with the kernel's work in between, whose code and data push ours out of the caches, it is about twice that. On the server the release takes 2.0 µs where a plain compare-and-delete takes 1.6 (pipelined, warm): it asks for waiters."},
	{"allocations per acquire + release", "solo", "modern", shown("solo", 3), false, 12, "30", ""},
	{"bridge, whole CPU / modern", "solo", "compat", figure{of: wholeCPU, base: "modern", digits: 2}, false, 1.25, "-", "The bridge keeps two keys, and looks for waiters and for the state of the gaps: six commands inside its two scripts where modern has four, most of the time for a SET with a TTL."},
	{"handoff between processes, p50 / blpop", "handoff", "modern", shown("handoff", 0), false, 1.4, "1.79", "The script. After 3 ms of pause nothing of it is in the server's caches: from the read of the release to the write of the grant pass 34 to 56 µs; for LPUSH 19 to 28. These are traces of system calls, one after the other on a busy machine. By INFO commandstats with the same pauses, LPUSH takes 11 µs, EVALSHA of `return 1` 16, and a compare-and-delete 41. The release to a waiter takes 81: it looks at the key, takes the waiter, tells it and writes its token. The rest of the way is BLPOP's: the same wake-ups, and a message that is longer by 80 bytes."},
	{"handoff between processes, p99 / blpop", "handoff", "modern", shown("handoff", 1), false, 1.6, "1.6", "As p50."},
	{"the same after an old client's DEL, p50 / blpop", "old-del", "modern", shown("old-del", 0), false, 1.6, "none can", "`bare`, in that table, sleeps in a read of the socket that tells of the DEL. It writes SET NX PX and reads the answer. It has the system calls of a C program: two ways one after the other, where BLPOP has one. The answer to DEL cannot contain the lock, and nothing on the server acts on a deletion for us. What modern takes longer than that is Go code that is cold after each pause. Its time in pieces (stamps taken within it, medians, after pauses of 20 ms): the invalidation is read 170 to 190 µs after the DEL; the question is begun 22 later and written after 20 more; the answer is read after another 55 to 75; the caller has the lock after 20. The server writes the invalidation after its answer to the old client, which shares a core with the waiter here; but tracking by BCAST, whose messages it writes first, was read no earlier: 169 µs after the DEL instead of 174. The lock came after 274 instead of 272 (`bare`, seven runs of each)."},
	{"handoffs/s, 4 x 4 / blpop", "turns-4x4", "modern", turnFigures[0], true, 0.92, "0.88", "A turn is 1 ms of section and the handoff. Meanwhile the next waiter of the same process takes its place in line."},
	{"handoffs/s, 1 x 16 / blpop", "turns-1x16", "modern", turnFigures[0], true, 0.92, "0.0 to 0.88", ""},
	{"most / fewest turns, 4 x 4", "turns-4x4", "modern", turnFigures[2], false, 1.3, "2.7 to ∞", ""},
	{"most / fewest turns, 1 x 16", "turns-1x16", "modern", turnFigures[2], false, 1.3, "2.7 to ∞", ""},
	{"p99 wait, 4 x 4 / blpop", "turns-4x4", "modern", turnFigures[3], false, 1.5, "7.5", ""},
	{"round trips per contended acquisition, 4 x 4", "turns-4x4", "modern", turnFigures[5], false, 3, "5.5", ""},
	{"bridge, the server's time for a pipelined pair / modern's", "crowd", "compat", figure{of: serverCPU, base: "modern", digits: 2}, false, 2, "-", ""},
	{"400 Lockers / 4, turns/s", "lockers-400", "modern", shown("lockers-400", 0), true, 0.85, "-", ""},
	{"400 Lockers / 4, turns/s, bridge", "lockers-400", "compat", shown("lockers-400", 0), true, 0.85, "-", ""},
	{"memory of 5,000 waiters of one process, MiB", "waiters", "modern", shown("waiters", 0), false, 100, "-", ""},
	{"memory of 5,000 waiters of one process, MiB, bridge", "waiters", "compat", shown("waiters", 0), false, 100, "-", ""},
	{"bytes left on the server for each lock after a minute, bridge", "left", "compat", shown("left", 0), false, 0, "-", ""},
	{"round trips/s for a held lock with 8 waiters", "idle", "modern", shown("idle", 0), false, 1, "1.5", ""},
	{"100,000 held locks, share of one core", "held", "modern", shown("held", 1), false, 1, "-", ""},
	{"100,000 held locks, connections", "held", "modern", shown("held", 3), false, 1, "-", ""},
}

const fewShare = "A quarter of the callers make a write, each alone with 4. The server then has the next command before it sleeps. " +
	"The write that wakes a sleeping server took 14 µs of the client's time, another one 2 µs, by `perf record` of system calls and wake-ups on a virtual machine. " +
	"With half of the callers in a write, all 4 were answered at once again and again: the first write woke the server, and it ran after the second. " +
	"That cost the client 22.5 µs a lock, and single writes 14.2 (medians of 30 slices in turn, `chrt -r 5`, others at work on the machine). " +
	"Where 2 share, the first command of each round still wakes the server."

const notPinned = "A read looks for a reply before it sleeps, while that pays. Where replies take longer than the look, it stops looking for a while. Then each " +
	"batch puts threads to sleep and wakes them. With 8 goroutines a lock cost the client 25 µs in such a run and 11 in another. Raw's cost 17 and 14 " +
	"(`go run . -cores all -only width-8 -of raw,modern`, others at work on the machine). With looks of 40 µs four runs of five had less than 1.3. With looks of 100 µs it was one of sixteen. " +
	"With the client on one core, the rows before these, there is none of that."

const serverBound = "The scripts fill the server's core. It takes raw's commands in about the same time (the table of 64 goroutines): it reads and writes once for " +
	"each, and for ours once for many. So the ratio is that of two scripts to what system calls cost. On an AMD EPYC machine it was 1.55: there raw took 60,000 locks a second."

func init() {
	for _, row := range []struct {
		widths []int
		name   func(int) string
		added  string
	}{{widths[1:], width, ""}, {freeWidths, freeWidth, ", not pinned"}} {
		for _, n := range row.widths {
			bound, limit := 1.1, ""
			if n >= 8 {
				bound = 1.3
			}
			switch {
			case row.added != "":
				limit = notPinned
			case n <= 8:
				limit = fewShare
			}
			goals = append(goals, goal{fmt.Sprintf("locks/s, %d goroutines, distinct keys%s / raw", n, row.added), row.name(n), "modern", figure{of: rate, base: "raw", digits: 2}, true, bound, "-", limit})
		}
	}
	goals = append(goals, goal{"bridge, locks/s, 64 goroutines, distinct keys / raw", width(64), "compat", figure{of: rate, base: "raw", digits: 2}, true, 1.3, "-", serverBound})
}

// judge compares what the table shows with the goal.
func (g goal) judge(r Results) (v value, verdict string) {
	v = r.over(g.scenario, g.contestant, g.figure)
	scale := math.Pow10(g.figure.digits)
	shown := math.Round(v.mid*scale) / scale
	switch {
	case v.n == 0:
		return v, "not measured"
	case g.least && shown < g.bound, !g.least && shown > g.bound:
		return v, "no"
	}
	return v, "yes"
}

// near is how far from its goal a figure may be for chance to decide on which side of it a run ends.
const near = 0.05

// limits says of every goal that was missed, or only just reached, what is in the way.
func limits(r Results) string {
	var b strings.Builder
	for _, g := range goals {
		if v, verdict := g.judge(r); g.limit != "" && (verdict == "no" || verdict == "yes" && math.Abs(v.mid/g.bound-1) < near) {
			fmt.Fprintf(&b, "- %s: %s\n", g.what, g.limit)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\nWhat is in the way where a goal was missed, or reached by less than a twentieth:\n\n" + b.String()
}

func (g goal) row(r Results) string {
	v, verdict := g.judge(r)
	sign := "≤"
	if g.least {
		sign = "≥"
	}
	return fmt.Sprintf("| %s | %s %g | %s | %s | %s |\n", g.what, sign, g.bound, v.text(g.figure.digits), verdict, g.peer)
}

// report is the document and its charts by file name.
type report struct {
	text   string
	charts map[string]string
}

func makeReport(p Plan, r Results, command string) report {
	out := report{charts: map[string]string{}}
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\nWritten by `make bench`; do not edit.\n\n")
	fmt.Fprintf(&b, "%s\nVersions: %s.\n\nCommand: `%s`\n\n", machine(), versions(), strings.TrimSpace(command))
	fmt.Fprintf(&b, "Figures are medians of %d rounds, with the smallest and the largest round in brackets. A ratio is taken\n"+
		"within its round. Every measurement checks that the lock excludes, and that it is really released; the\n"+
		"locks of this project run as they come, with renewal on.\n\n", p.Rounds)

	fmt.Fprintf(&b, "## What was to be reached\n\n| what | goal | measured | reached | best of the others |\n|---|---|---|---|---|\n")
	for _, g := range goals {
		b.WriteString(g.row(r))
	}
	b.WriteString(limits(r))
	b.WriteString("\n## Contestants\n\n| name | what it is |\n|---|---|\n")
	for _, c := range contestants {
		if p.has(c) {
			fmt.Fprintf(&b, "| %s | %s |\n", c.name, c.about)
		}
	}
	for _, t := range tables {
		t.write(&b, r, out.charts)
	}
	out.text = b.String()
	return out
}

func (t table) write(b *strings.Builder, r Results, charts map[string]string) {
	if !slices.ContainsFunc(t.figures, func(f figure) bool { return len(r[cmp.Or(f.in, t.scenario)]) > 0 }) {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n", t.title, t.text)
	if t.chart > 0 {
		name := t.scenario + ".svg"
		charts[name] = t.bars(r)
		fmt.Fprintf(b, "![%s: %s](benchmarks/%s)\n\n", t.title, t.figures[t.chart-1].what, name)
	}
	b.WriteString("| |")
	for _, f := range t.figures {
		fmt.Fprintf(b, " %s |", f.what)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(t.figures)) + "\n")
	for _, c := range contestants {
		if !slices.ContainsFunc(t.figures, func(f figure) bool { return len(r[cmp.Or(f.in, t.scenario)][c.name]) > 0 }) {
			continue
		}
		fmt.Fprintf(b, "| %s |", c.name)
		for _, f := range t.figures {
			fmt.Fprintf(b, " %s |", r.over(cmp.Or(f.in, t.scenario), c.name, f).text(f.digits))
		}
		b.WriteString("\n")
	}
	for _, c := range contestants {
		for round, s := range r[t.scenario][c.name] {
			if s.Problem != "" {
				fmt.Fprintf(b, "\n%s, round %d: %s.\n", c.name, round+1, s.Problem)
			}
		}
	}
}

// write puts the document and its charts into a directory.
func (r report) write(dir string) error {
	charts := filepath.Join(dir, "benchmarks")
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	for name, svg := range r.charts {
		if err := os.WriteFile(filepath.Join(charts, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmarks.md"), []byte(r.text), 0o644)
}

func machine() string {
	cpu := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	where := "server and clients not pinned"
	if pinned() {
		where = "the server pinned to one core, all clients to another"
	}
	if policy, _, _ := syscall.RawSyscall(syscall.SYS_SCHED_GETSCHEDULER, 0, 0, 0); policy == 1 || policy == 2 {
		where += ", at real-time priority, because others work on the machine"
	}
	return fmt.Sprintf("%s, %d cores, %s/%s, %s, redis-server %s; %s; %s.",
		cpu, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), versionOfServer(), where, time.Now().UTC().Format("2006-01-02"))
}

// versions are those of the libraries that were measured.
func versions() string {
	wanted := []string{"gomodule/redigo", "go-redsync/redsync", "bsm/redislock", "redis/rueidis", "redis/go-redis"}
	var found []string
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			for _, w := range wanted {
				if strings.Contains(m.Path, w) {
					found = append(found, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
				}
			}
		}
	}
	return strings.Join(found, ", ")
}
