// Package conformance tries an implementation of the protocol: any program that speaks JSON lines on stdin and stdout, see docs/conformance.md. It
// starts servers, old clients and Go members beside it, plays the cases of folder cases, and judges.
package conformance

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed cases/*.txt
var files embed.FS

const levels = 4

// Case is one thing that is tried. Its file has the level's number for its name, and fields of the same names before its steps.
type Case struct {
	ID    string `json:"case"`
	Level int    `json:"level"`
	Claim string `json:"claim"`           // of docs/protocol.md, or of docs/conformance.md
	Needs string `json:"needs,omitempty"` // of what a driver says that it can
	steps []step
}

// step is one line: what is done, and what is expected.
type step struct {
	verb string
	args []string
	want string
	text string
}

// Cases are all cases, by level.
func Cases() []*Case {
	var all []*Case
	for level := 1; level <= levels; level++ {
		text, _ := files.ReadFile(fmt.Sprintf("cases/%d.txt", level))
		all = append(all, parse(level, string(text))...)
	}
	return all
}

// parse reads the cases of a file. Each begins with "== id"; what follows are fields, then steps, "VERB ARG... => WANT".
func parse(level int, text string) (all []*Case) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " # ")
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if id, ok := strings.CutPrefix(line, "== "); ok {
			all = append(all, &Case{ID: id, Level: level})
			continue
		}
		c := all[len(all)-1]
		field, value, _ := strings.Cut(line, ": ")
		if into := map[string]*string{"claim": &c.Claim, "needs": &c.Needs}[field]; into != nil {
			*into = value
			continue
		}
		do, want, _ := strings.Cut(line, " => ")
		words := strings.Fields(do)
		c.steps = append(c.steps, step{words[0], words[1:], cmp.Or(strings.TrimSpace(want), "ok"), line})
	}
	return all
}

// Results of a case.
const (
	Pass       = "pass"
	Fail       = "fail"
	NotTried   = "not tried"
	NotClaimed = "not claimed"

	Passed = "passed" // of a level
	Failed = "failed"
)

// Result is what became of a case.
type Result struct {
	*Case
	Result   string `json:"result"`
	Step     string `json:"step,omitempty"` // that failed
	Expected string `json:"expected,omitempty"`
	Seen     string `json:"seen,omitempty"`   // or why it was not tried
	Stderr   string `json:"stderr,omitempty"` // the last that the driver said
	MS       int64  `json:"ms"`
}

// Level is what became of a level: passed, failed, not tried or not claimed.
type Level struct {
	Level  int    `json:"level"`
	Result string `json:"result"`
	Cases  int    `json:"cases"`
	Passed int    `json:"passed"`
}

// Report is the answer.
type Report struct {
	Implementation Hello    `json:"implementation"`
	Server         string   `json:"server"`
	Levels         []Level  `json:"levels"`
	Cases          []Result `json:"cases"`

	whole map[int]bool // all cases of the level were played
}

// Options of a run.
type Options struct {
	Command []string
	Server  string              // the program redis-server
	Cases   []string            // to try, each by its id or as the number of its level; none: all
	Began   func(done, all int) // may be nil
}

// Why nothing could be tried; any other error is the driver's.
var (
	ErrNoServer = errors.New("no Redis server to try it on")
	ErrNoCase   = errors.New("there is no such case")
)

// kit runs.
type kit struct {
	Options
	hello Hello

	mu   sync.Mutex
	idle []*process
}

// CleansWithin is how long Run takes at most, after its context has ended, to end what it has started.
const CleansWithin = 15 * time.Second

// Run tries all cases that were asked for.
func Run(ctx context.Context, o Options) (*Report, error) {
	k := &kit{Options: o}
	defer k.end()
	var err error
	if k.Server, err = exec.LookPath(o.Server); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	version, err := exec.CommandContext(ctx, k.Server, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s --version: %w", ErrNoServer, k.Server, err)
	}
	p, err := k.process(ctx)
	if err != nil {
		return nil, err
	}
	k.hello = p.hello
	k.release(p)
	r := &Report{Implementation: k.hello, Server: strings.TrimSpace(string(version))}
	all := Cases()
	for _, id := range o.Cases {
		if !slices.ContainsFunc(all, func(c *Case) bool { return c.ID == id || strconv.Itoa(c.Level) == id }) {
			return nil, fmt.Errorf("%w: %q", ErrNoCase, id)
		}
	}
	whole := map[int]bool{}
	for _, c := range all {
		if whole[c.Level] = len(o.Cases) == 0 || slices.Contains(o.Cases, strconv.Itoa(c.Level)); !whole[c.Level] && !slices.Contains(o.Cases, c.ID) {
			continue
		}
		r.Cases = append(r.Cases, Result{Case: c})
	}
	k.playAll(ctx, r.Cases)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	r.whole = whole
	r.Judge()
	return r, nil
}

// playAll plays several cases at a time: most of their time is spent waiting.
func (k *kit) playAll(ctx context.Context, results []Result) {
	var running sync.WaitGroup
	var mu sync.Mutex
	free, done := make(chan bool, 8), 0
	order := make([]*Result, len(results)) // the longest levels first
	for i := range results {
		order[i] = &results[i]
	}
	slices.SortStableFunc(order, func(a, b *Result) int { return b.Level - a.Level })
	for _, r := range order {
		if free <- true; ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			k.judge(ctx, r)
			r.MS = time.Since(began).Milliseconds()
			mu.Lock()
			defer mu.Unlock()
			if done++; k.Began != nil {
				k.Began(done, len(results))
			}
		})
	}
	running.Wait()
}

// judge plays one case.
func (k *kit) judge(ctx context.Context, r *Result) {
	switch {
	case !slices.Contains(k.hello.Levels, r.Level):
		r.Result, r.Seen = NotClaimed, fmt.Sprintf("the driver does not claim level %d", r.Level)
		return
	case r.Needs != "" && !slices.Contains(k.hello.Can, r.Needs):
		r.Result, r.Seen = NotClaimed, "the driver does not say that it can "+r.Needs
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := &play{kit: k, c: r.Case, actors: map[string]*actor{}}
	defer p.end()
	failed, seen, err := p.run(ctx)
	switch {
	case errors.Is(err, errNotTried):
		r.Result, r.Seen = NotTried, err.Error()
	case err != nil:
		r.Result, r.Step, r.Expected, r.Seen = Fail, failed.text, failed.want, err.Error()
	case failed != nil:
		r.Result, r.Step, r.Expected, r.Seen = Fail, failed.text, failed.want, seen
	default:
		r.Result = Pass
	}
	if r.Result == Fail {
		r.Stderr, p.failed = p.stderr(), true
	}
}

// Passed is how many cases did.
func (r *Report) Passed() (n int) {
	for _, l := range r.Levels {
		n += l.Passed
	}
	return n
}

// Judge makes the levels' results of those of the cases. What was not tried is never passed.
func (r *Report) Judge() {
	r.Levels = nil
	for level := 1; level <= levels; level++ {
		l := Level{Level: level, Result: NotTried}
		count := map[string]int{}
		for _, c := range r.Cases {
			if c.Level == level {
				l.Cases++
				count[c.Result]++
			}
		}
		l.Passed = count[Pass]
		switch {
		case l.Cases > 0 && !slices.Contains(r.Implementation.Levels, level):
			l.Result = NotClaimed
		case count[Fail] > 0:
			l.Result = Failed
		case r.whole[level] && l.Passed > 0 && l.Passed+count[NotClaimed] == l.Cases:
			l.Result = Passed
		}
		r.Levels = append(r.Levels, l)
	}
}
