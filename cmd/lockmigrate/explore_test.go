package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
)

// screenEnvironment writes to a terminal of that many columns; 0 is a pipe.
func screenEnvironment(columns int, variables map[string]string) (*environment, *bytes.Buffer) {
	out := new(bytes.Buffer)
	return &environment{
		stdout: out, stderr: io.Discard, now: time.Now,
		getenv:     func(name string) string { return variables[name] },
		isTerminal: func(w io.Writer) bool { return w == out && columns > 0 },
		width:      func(io.Writer) int { return columns },
	}, out
}

// foundAsKnown are all claims with the verdicts that are known of them, unsearched.
func foundAsKnown() []explore.Finding {
	var found []explore.Finding
	for _, c := range explore.Claims() {
		found = append(found, explore.Finding{Claim: c, Outcome: explore.Outcome{Verdict: c.Expected}})
	}
	return found
}

// explored is what explore prints.
func explored(env *environment, found []explore.Finding, chosen bool, wall time.Duration) string {
	var b strings.Builder
	exploreText(&b, env, found, chosen, wall)
	return b.String()
}

// TestExploreSummary: the sums are those of the claims, the verdicts read as what they are, and one that differs shows.
func TestExploreSummary(t *testing.T) {
	env, _ := screenEnvironment(80, nil)
	found := foundAsKnown()
	out := text.StripEscape(explored(env, found, false, time.Second))
	broken := 0
	for _, f := range found {
		if f.Expected == explore.Violated {
			broken++
		}
	}
	assert.Regexp(t, fmt.Sprintf(`^proven +%d: .*\nbroken, as expected +%d: .*\notherwise +0: `, len(found)-broken, broken), out)
	require.NoError(t, judgeFindings(found))

	found[0].Verdict = explore.Violated // LL-agree
	wide, _ := screenEnvironment(200, nil)
	out = text.StripEscape(explored(wide, found, true, time.Second))
	assert.Contains(t, out, "BROKEN, expected to hold  LL-agree ")
	assert.Equal(t, exitUnsafe, exitCode(judgeFindings(found)))
	found[0].Verdict = explore.Incomplete
	assert.Equal(t, exitInconclusive, exitCode(judgeFindings(found)))
}

// TestWhatAMachineReadsHasNoWidth: in a pipe the width of the terminal changes nothing and nothing is coloured; on a
// terminal no line is wider than it, and NO_COLOR is honoured.
func TestWhatAMachineReadsHasNoWidth(t *testing.T) {
	redistest.Unraced(t)
	render := func(columns int, variables map[string]string) string {
		env, out := screenEnvironment(columns, variables)
		require.NoError(t, env.show(explored(env, foundAsKnown(), true, time.Second)))
		return out.String()
	}
	pipe := render(0, nil)
	assert.NotContains(t, pipe, "\x1b")
	assert.Equal(t, len(explore.Claims())+7, strings.Count(pipe, "\n"), "a row is a line")
	for _, columns := range []int{80, 120, 200} {
		out := render(columns, nil)
		assert.Contains(t, out, "\x1b[32mproven\x1b[0m")
		assert.NotContains(t, render(columns, map[string]string{"NO_COLOR": "1"}), "\x1b")
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")), columns, line)
		}
	}
}

// TestACommandIsNotBroken: a terminal copies a command that a message names as one line.
func TestACommandIsNotBroken(t *testing.T) {
	run := "lockmigrate simulate --scenario orders.txt --seed 1 --as story"
	assert.Equal(t, "create it\n  (\""+run+"\"),\n  or name another", wrap("create it (\""+run+"\"), or name another", 40, 2))
	assert.Equal(t, "next  "+run, wrap("next  "+run, 40, 2))
}
