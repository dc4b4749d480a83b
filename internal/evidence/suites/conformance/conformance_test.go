// Package conformance tries the kit of `lockmigrate conformance`: right implementations pass it, and wrong ones fail at the case that is there for them.
package conformance

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/conformance"
)

const root = "../../../.."

// try runs the kit.
func try(t *testing.T, o conformance.Options) *conformance.Report {
	t.Helper()
	o.Server = "redis-server"
	report, err := conformance.Run(context.Background(), o)
	require.NoError(t, err)
	return report
}

// passes wants levels to be passed, and the others not to be claimed.
func passes(t *testing.T, r *conformance.Report, levels ...int) {
	t.Helper()
	for _, c := range r.Cases {
		if c.Result == conformance.Fail || c.Result == conformance.NotTried {
			word := ""
			if strings.Contains(c.Seen, "overlap") {
				word = redistest.Violated + ": "
			}
			t.Errorf("%slevel %d, %s: %s: %s: expected %q, saw %q\n%s", word, c.Level, c.ID, c.Result, c.Step, c.Expected, c.Seen, c.Stderr)
		}
	}
	for _, l := range r.Levels {
		want := conformance.NotClaimed
		if slices.Contains(levels, l.Level) {
			want = conformance.Passed
		} else if l.Cases == 0 {
			want = conformance.NotTried
		}
		assert.Equal(t, want, l.Result, "level %d of %s", l.Level, r.Implementation.Name)
	}
}

func TestGoPassesAllLevels(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	t.Parallel()
	passes(t, try(t, conformance.Options{Command: golang("")}), 1, 2, 3, 4)
}

// Node claims what a first port has: levels 1 and 2, without queue, tokens and stage legacy.
func TestNodePassesWhatItClaims(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Node)
	t.Parallel()
	r := try(t, conformance.Options{Command: []string{"node", filepath.Join(root, "testdata/conformance/node/driver.js")}})
	passes(t, r, 1, 2)
	for _, c := range r.Cases {
		assert.Equal(t, c.Level > 2 || c.Needs != "", c.Result == conformance.NotClaimed, c.ID)
	}
}

var everyLevel = flag.Bool("every-level", false, "the libraries of other languages play all levels, and Java's with Lettuce too; else the faults alone")

// The libraries of Java and Python are members as Go's is.
func TestLibrariesPass(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python, redistest.Java)
	t.Parallel()
	at := func(path string) string {
		path, err := filepath.Abs(filepath.Join(root, path))
		require.NoError(t, err)
		return path
	}
	java := at("clients/java/tests/target")
	jvm := []string{"java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", java + "/*:" + java + "/lib/*"}
	libraries := [][]string{
		{"env", "PYTHONPATH=" + at("clients/python/src"), at("testdata/holders/python/.venv-suite/bin/python"), "-B", "-m", "lockmigrate.conformance"},
		append(slices.Clone(jvm), "-Dclients=jedis", "io.github.lockmigrate.Conformance"),
	}
	levels := []int{4}
	o := conformance.Options{Cases: []string{"4"}}
	if *everyLevel {
		levels, o.Cases = []int{1, 2, 3, 4}, nil
		libraries = append(libraries, append(slices.Clone(jvm), "-Dclients=lettuce", "io.github.lockmigrate.Conformance"))
	}
	for _, o.Command = range libraries {
		passes(t, try(t, o), levels...)
	}
}

// The kit is worth what it finds: each of these implementations does one thing wrong, and fails where it must.
func TestWrongImplementationsFailAtTheirCase(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	t.Parallel()
	var running sync.WaitGroup
	free := make(chan bool, 8) // most of their time they wait for leases: go test would play as many at a time as there are processors
	for name, w := range wrongs {
		for at, seen := range w.fails {
			free <- true
			running.Go(func() {
				defer func() { <-free }()
				r, err := conformance.Run(context.Background(), conformance.Options{Command: golang(name), Server: "redis-server", Cases: []string{at}})
				if !assert.NoError(t, err, name) || !assert.Len(t, r.Cases, 1, name) {
					return
				}
				is := r.Cases[0]
				assert.Equal(t, conformance.Fail, is.Result, "%s at %s", name, at)
				assert.True(t, strings.HasPrefix(is.Seen, seen), "%s at %s: %s: saw %q, not %q", name, at, is.Step, is.Seen, seen)
			})
		}
	}
	running.Wait()
}

// A server that does not start is no pass: no level is passed without its cases.
func TestWhatCannotBeTriedIsNotPassed(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	server := filepath.Join(t.TempDir(), "server")
	require.NoError(t, os.WriteFile(server, []byte("#!/bin/sh\n[ $1 = --version ] && echo a server\n"), 0o700))
	r, err := conformance.Run(context.Background(), conformance.Options{Command: golang(""), Server: server, Cases: []string{"3"}})
	require.NoError(t, err)
	for _, c := range r.Cases {
		assert.Equal(t, conformance.NotTried, c.Result, c.ID)
	}
	for _, l := range r.Levels {
		assert.Equal(t, conformance.NotTried, l.Result)
	}
}

// Each case names the sentence of the protocol that it tries, and docs/conformance.md names each case.
func TestCasesTryWhatIsWritten(t *testing.T) {
	flat := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, "docs", file))
		require.NoError(t, err)
		return strings.ToLower(strings.Join(strings.Fields(string(text)), " "))
	}
	protocol, page := flat("protocol.md"), flat("conformance.md")
	seen := map[string]bool{}
	for _, c := range conformance.Cases() {
		assert.False(t, seen[c.ID], "two cases %s", c.ID)
		seen[c.ID] = true
		assert.NotEmpty(t, c.Claim, c.ID)
		assert.True(t, strings.Contains(protocol, strings.ToLower(strings.Join(strings.Fields(c.Claim), " "))), "docs/protocol.md does not say %q, which %s tries", c.Claim, c.ID)
		assert.True(t, strings.Contains(page, "`"+c.ID+"`"), "docs/conformance.md does not name %s", c.ID)
	}
	assert.Greater(t, len(seen), 40)
}
