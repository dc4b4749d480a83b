package main

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestMain is a worker process too: the tests measure with what they are made of.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := work(bufio.NewReader(os.Stdin), os.Stdout); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A small run of everything: every contestant excludes, releases and reports, and the document comes out.
func TestSmoke(t *testing.T) {
	redistest.Need(t, redistest.Redis) // it measures one: where the run asks for it and there is none, it fails
	plan := Plan{Rounds: 1, Stretch: 20 * time.Millisecond, Contended: 400 * time.Millisecond, Idle: 500 * time.Millisecond, Held: 500, Waiters: 50, After: time.Millisecond}
	results, err := measure(plan, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range scenarios {
		for _, c := range contestants {
			if plan.covers(sc) && plan.has(c) && sc.fits(c) && len(results[sc.name][c.name]) != 1 {
				t.Errorf("%s, %s: %d samples", sc.name, c.name, len(results[sc.name][c.name]))
			}
		}
	}
	r := makeReport(plan, results, "go test")
	dir := t.TempDir()
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## What was to be reached", "| modern |", "benchmarks/handoff.svg"} {
		if !strings.Contains(r.text, want) {
			t.Errorf("the report lacks %q:\n%s", want, r.text)
		}
	}
	if len(r.charts) < 5 {
		t.Errorf("%d charts", len(r.charts))
	}
}

// Two who hold a lock at once are seen, or no measurement here is worth anything.
func TestRefereeSeesOverlaps(t *testing.T) {
	path, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	one, err := openReferee(path)
	if err != nil {
		t.Fatal(err)
	}
	defer one.close()
	two, err := openReferee(path)
	if err != nil {
		t.Fatal(err)
	}
	defer two.close()
	one.enter()
	one.leave()
	two.enter()
	if v := one.verdict(); v != "" {
		t.Errorf("one after the other: %q", v)
	}
	one.enter()
	if two.verdict() == "" {
		t.Error("two at once were not seen")
	}
}

func TestFigures(t *testing.T) {
	results := Results{"solo": {
		"raw":    {{Result: Result{Ops: 10, CPU: 100}}, {Result: Result{Ops: 10, CPU: 200}}, {Result: Result{Ops: 10, CPU: 400}}},
		"modern": {{Result: Result{Ops: 10, CPU: 200}}, {Result: Result{Problem: "stuck"}}, {Result: Result{Ops: 10, CPU: 400}}},
	}}
	v := results.over("solo", "modern", figure{of: wholeCPU, base: "raw"})
	if v.n != 2 || v.low != 1 || v.high != 2 || v.mid != 1.5 {
		t.Errorf("%+v: a ratio is of its own round, and a round with a problem has none", v)
	}
	if q := quantile([]int64{5, 1, 4, 2, 3}, 0.5); q != 3 {
		t.Errorf("the median of 1 to 5 is %v", q)
	}
	if u := unevenness(Sample{Result: Result{Turns: []int{0, 3}}}); number(u, 2) != "∞" {
		t.Errorf("%v for a worker that starves", u)
	}
}

// Fleets work on one server and in a cluster, without the rights that the Go clients would use, beside another application: both
// kinds of clients get turns, and each wait is counted once.
func TestFleets(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	for name, begin := range map[string]func() ([]*server, error){
		"one server": func() ([]*server, error) { s, err := startServer(); return []*server{s}, err },
		"a cluster":  startCluster,
	} {
		servers, err := begin()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer stopAll(servers)
		h := &harness{servers: servers, user: "go"}
		if err := h.allow("-info", "-client|tracking"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		stop := h.makeNoise(100)
		defer stop()
		fleet := fleet{old: 1, young: 2, hold: 5 * time.Millisecond, think: 20 * time.Millisecond}
		served := false
		for end := time.Now().Add(time.Minute); !served && time.Now().Before(end); { // a busy machine may leave a second without turns
			got, err := h.play(fleet, true, time.Second)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			served = got[0].turns > 0 && got[1].turns > 0
			for kind, clients := range []int{1, 2} {
				if g := &got[kind]; len(g.waits) != g.turns || len(g.each) != clients {
					t.Errorf("%s: kind %d: %d turns, %d waits, %d clients", name, kind, g.turns, len(g.waits), len(g.each))
				}
			}
		}
		if !served {
			t.Errorf("%s: somebody had no turn in any second of a minute", name)
		}
	}
}
