package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Sample is one contestant's part in one round of a scenario.
type Sample struct {
	Result
	Spent usage // of the server; without meaning where several measurements had it at once
}

// Results are the samples by scenario and contestant, one for each round.
type Results map[string]map[string][]Sample

// scenario is one kind of measurement.
type scenario struct {
	name  string
	fits  func(c contestant) bool
	once  bool // in the first round only
	free  bool // neither server nor clients are pinned
	apart bool // each contestant has a server of its own, and all run at once: what counts is no time
	specs func(p Plan) []Spec
}

var scenarios = []scenario{
	{name: "solo", fits: func(c contestant) bool { return c.solo }, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "solo", For: p.Stretch, Slices: p.slices()}}
	}},
	{name: "crowd", fits: func(c contestant) bool { return c.solo && c.name != "legacy" }, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "crowd", Goroutines: 64, For: p.Stretch, Slices: p.slices()}}
	}},
	{name: "fresh", fits: func(c contestant) bool { return c.solo && c.name != "legacy" }, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "crowd", Goroutines: 64, Fresh: true, For: p.Stretch, Slices: p.slices()}}
	}},
	{name: "handoff", fits: func(c contestant) bool { return c.waits }, specs: func(p Plan) []Spec {
		return times(2, Spec{Scenario: "handoff", Section: 3 * time.Millisecond, For: p.Contended})
	}},
	{name: "old-del", fits: func(c contestant) bool { return c.old }, specs: func(p Plan) []Spec {
		return times(2, Spec{Scenario: "old-del", Section: 3 * time.Millisecond, For: p.Contended})
	}},
	{name: "turns-4x4", fits: func(c contestant) bool { return c.waits }, specs: func(p Plan) []Spec {
		return times(4, Spec{Scenario: "turns", Goroutines: 4, Section: time.Millisecond, For: p.Contended})
	}},
	{name: "turns-1x16", fits: func(c contestant) bool { return c.waits }, specs: func(p Plan) []Spec {
		return times(1, Spec{Scenario: "turns", Goroutines: 16, Section: time.Millisecond, For: p.Contended})
	}},
	{name: "turns-32x1", fits: told, specs: func(p Plan) []Spec {
		return times(32, Spec{Scenario: "turns", Goroutines: 1, Section: time.Millisecond, For: p.Contended})
	}},
	{name: "lockers-4", fits: told, specs: lockers(4)},
	{name: "lockers-400", fits: told, specs: lockers(400)},
	{name: "waiters", once: true, apart: true, fits: told, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "hold", For: p.Idle}, {Scenario: "wait", Goroutines: p.Waiters, For: p.Idle / 2}}
	}},
	{name: "left", once: true, apart: true, fits: func(c contestant) bool { return c.solo }, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "left", Held: p.Held / 10, For: p.After}}
	}},
	{name: "idle", once: true, apart: true, fits: func(c contestant) bool { return c.waits }, specs: func(p Plan) []Spec {
		holder := Spec{Scenario: "hold", For: p.Idle + 4*time.Second}
		return append([]Spec{holder}, times(4, Spec{Scenario: "wait", Goroutines: 2, For: p.Idle + 3*time.Second})...)
	}},
	{name: "held", once: true, fits: func(c contestant) bool { return c.held }, specs: func(p Plan) []Spec {
		return []Spec{{Scenario: "held", Held: p.Held, For: p.Idle}}
	}},
}

// widths are the numbers of goroutines that a shared connection is measured with.
var widths = []int{1, 2, 4, 8, 16, 32, 64, 256}

func init() {
	for _, n := range widths {
		scenarios = append(scenarios, scenario{
			name: width(n), fits: func(c contestant) bool { return c.shares || c.name == "raw" },
			specs: callers(n),
		})
	}
	for _, n := range freeWidths {
		scenarios = append(scenarios, scenario{
			name: freeWidth(n), free: true, fits: func(c contestant) bool { return c.name == "modern" || c.name == "raw" }, specs: callers(n),
		})
	}
}

// freeWidths are those that are measured without pinning too.
var freeWidths = []int{2, 4, 8, 16, 64}

func width(n int) string { return fmt.Sprint("width-", n) }

func freeWidth(n int) string { return fmt.Sprint("free-", n) }

// callers is one process with n goroutines, each with a key of its own.
func callers(n int) func(p Plan) []Spec {
	return func(p Plan) []Spec {
		return []Spec{{Scenario: "crowd", Goroutines: n, For: p.Stretch, Slices: p.slices()}}
	}
}

// told are the locks to choose from whose waiters are woken, and the ideal.
func told(c contestant) bool { return c.name == "modern" || c.name == "compat" || c.list }

// lockers is one process in which everybody has a client to itself, which costs what a process each would cost the server.
func lockers(n int) func(p Plan) []Spec {
	return func(p Plan) []Spec {
		return []Spec{{Scenario: "turns", Goroutines: n, Lockers: true, Section: time.Millisecond, Settle: time.Minute, For: p.Contended}}
	}
}

func times(n int, s Spec) []Spec {
	specs := make([]Spec, n)
	for i := range specs {
		specs[i] = s
	}
	return specs
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

// measure runs everything, and says on the way what it is doing.
func measure(p Plan, say func(string)) (Results, error) {
	results := Results{}
	s, err := startServer()
	if err != nil {
		return nil, err
	}
	defer s.stop()
	say(fmt.Sprintf("redis-server %s on %s; pinned to cores: %v", serverVersion(s.conn), s.addr, pinned()))
	for round := range p.Rounds {
		for _, sc := range scenarios {
			if sc.once && round > 0 || !p.covers(sc) {
				continue
			}
			started := time.Now()
			if err := measureRound(p, s, sc, round, results); err != nil {
				return nil, err
			}
			say(fmt.Sprintf("round %d of %d, %s: %v", round+1, p.Rounds, sc.name, time.Since(started).Round(time.Millisecond)))
		}
	}
	return results, nil
}

// slices is into how many pieces a stretch is cut: of 25 ms, and one at least.
func (p Plan) slices() int { return max(int(p.Stretch/(25*time.Millisecond)), 1) }

func (p Plan) covers(sc scenario) bool {
	return len(p.Only) == 0 || slices.Contains(p.Only, sc.name)
}

func (p Plan) has(c contestant) bool {
	return len(p.Of) == 0 && !c.aside || slices.Contains(p.Of, c.name)
}

// measureRound lets every contestant have its turn, another one first each time.
func measureRound(p Plan, s *server, sc scenario, round int, results Results) error {
	var field []contestant
	for _, c := range contestants {
		if sc.fits(c) && p.has(c) || sc.name == "old-del" && c.name == "blpop" {
			field = append(field, c)
		}
	}
	if results[sc.name] == nil {
		results[sc.name] = map[string][]Sample{}
	}
	if sc.apart {
		return together(p, sc, field, results)
	}
	if sc.free && pinned() {
		defer func(as struct{ server, clients string }) { placement = as }(placement)
		placement = placements["all"]
		var err error
		if s, err = startServer(); err != nil {
			return err
		}
		defer s.stop()
	}
	if spec := sc.specs(p)[0]; spec.Slices > 0 {
		samples, err := measureSlices(s, spec, field, fmt.Sprintf("%s-%d-", sc.name, round))
		for c, sample := range samples {
			if err == nil {
				err = results.put(sc.name, c, sample)
			}
		}
		return err
	}
	for i := range field {
		c := field[(i+round)%len(field)]
		specs := sc.specs(p)
		if sc.name == "old-del" && c.list { // the yardstick: as in the table above
			specs = scenarios[slices.Index(scenarioNames(), "handoff")].specs(p)
		}
		sample, err := measureOne(s, specs, c, fmt.Sprintf("%s-%s-%d", sc.name, c.name, round), 0)
		if err != nil {
			return err
		}
		if err := results.put(sc.name, c.name, sample); err != nil {
			return err
		}
	}
	return nil
}

// put keeps a sample. A lock of this project that fails ends the run; that another one does is a finding.
func (r Results) put(scenario, contestant string, s Sample) error {
	if s.Problem != "" && ours(contestant) {
		return fmt.Errorf("%s, %s: %s", scenario, contestant, s.Problem)
	}
	r[scenario][contestant] = append(r[scenario][contestant], s)
	return nil
}

// together lets each contestant have a server of its own, so that they need not wait for one another: what counts is a number
// of round trips or bytes.
func together(p Plan, sc scenario, field []contestant, results Results) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var first error
	for _, c := range field {
		all.Go(func() {
			sample, err := func() (Sample, error) {
				s, err := startServer()
				if err != nil {
					return Sample{}, err
				}
				defer s.stop()
				watch := time.Duration(0)
				if sc.name == "idle" {
					watch = p.Idle
				}
				return measureOne(s, sc.specs(p), c, sc.name+"-"+c.name, watch)
			}()
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				err = results.put(sc.name, c.name, sample)
			}
			if first == nil {
				first = err
			}
		})
	}
	all.Wait()
	return first
}

// measureOne runs the processes of one measurement and puts their findings together. The server's
// spending is that between the word to the first and the end of the last; or, where watch says so, that
// of so long, beginning when everybody has had a second to settle.
func measureOne(s *server, specs []Spec, c contestant, key string, watch time.Duration) (Sample, error) {
	if _, err := s.conn.Do("FLUSHALL"); err != nil {
		return Sample{}, err
	}
	if c.list {
		if _, err := s.conn.Do("LPUSH", key, "token"); err != nil {
			return Sample{}, err
		}
	}
	path, err := newBoard()
	if err != nil {
		return Sample{}, err
	}
	defer removeBoard(path)

	var procs []*process
	defer func() {
		for _, p := range procs {
			p.end()
		}
	}()
	for i, spec := range specs {
		spec.Contestant, spec.Addr, spec.Key, spec.Shared, spec.Index = c.name, s.addr, key, path, i
		p, err := startProcess(spec)
		if err != nil {
			return Sample{}, err
		}
		procs = append(procs, p)
		if err := p.awaitReady(); err != nil {
			return failed(err)
		}
	}
	before, err := info(s.conn)
	if err != nil {
		return Sample{}, err
	}
	for _, p := range procs {
		p.word()
	}
	var sample Sample
	if watch > 0 {
		time.Sleep(time.Second)
		if before, err = info(s.conn); err != nil {
			return Sample{}, err
		}
		time.Sleep(watch)
		after, err := info(s.conn)
		if err != nil {
			return Sample{}, err
		}
		sample.Spent, sample.Took = after.since(before), watch
	}
	for _, p := range procs {
		r, err := p.result()
		if err != nil {
			return Sample{}, err
		}
		sample.add(r)
	}
	if watch == 0 {
		after, err := info(s.conn)
		if err != nil {
			return Sample{}, err
		}
		sample.Spent = after.since(before)
	}
	return sample, nil
}

// failed makes a worker's own word a finding; everything else is an error.
func failed(err error) (Sample, error) {
	var p problem
	if errors.As(err, &p) {
		return Sample{Result: Result{Problem: string(p)}}, nil
	}
	return Sample{}, err
}

func (s *Sample) add(r Result) {
	s.Ops += r.Ops
	s.Took = max(s.Took, r.Took)
	s.CPU += r.CPU
	s.Server += r.Server
	s.Clients += r.Clients
	s.Mallocs = max(s.Mallocs, r.Mallocs)
	s.Memory = max(s.Memory, r.Memory)
	s.Waits = append(s.Waits, r.Waits...)
	s.Handoffs = append(s.Handoffs, r.Handoffs...)
	s.Turns = append(s.Turns, r.Turns...)
	if s.Problem == "" {
		s.Problem = r.Problem
	}
}

// process is a worker seen from the outside.
type process struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	over bool
}

func startProcess(spec Spec) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: spec.Scenario + ", " + spec.Contestant, cmd: command(placement.clients, self, "worker")}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	order, err := json.Marshal(spec)
	if err == nil {
		_, err = p.in.Write(append(order, '\n'))
	}
	if err != nil {
		p.end()
		return nil, err
	}
	return p, nil
}

func (p *process) awaitReady() error {
	line, err := p.out.ReadString('\n')
	var r Result
	switch {
	case err == nil && strings.TrimSpace(line) == "ready":
		return nil
	case err == nil && json.Unmarshal([]byte(line), &r) == nil:
		return problem(r.Problem)
	default:
		return fmt.Errorf("%s: the worker said %q: %w", p.name, line, err)
	}
}

// problem is what a worker says instead of figures.
type problem string

func (p problem) Error() string { return string(p) }

func (p *process) word() { _, _ = io.WriteString(p.in, "go\n") }

func (p *process) result() (Result, error) {
	var r Result
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: no result: %w", p.name, err)
	}
	p.over = true
	return r, p.cmd.Wait()
}

func (p *process) end() {
	if !p.over {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}
