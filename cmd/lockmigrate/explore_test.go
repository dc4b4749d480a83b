package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
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

// claimCells are a claim and what the protocol's page says of it, in neighbouring cells of a table.
var claimCells = regexp.MustCompile("\\| `([A-Za-z0-9-]+)` \\|(?: [^|`][^|]* \\|)? (proven|broken) ")

// TestTheProtocolsPageSaysWhatTheClaimsSay: each claim that docs/protocol.md names exists, stands in the tool with that verdict, and is
// printed with it by the command that the page gives. TestClaims shows that the verdicts are true.
func TestTheProtocolsPageSaysWhatTheClaimsSay(t *testing.T) {
	redistest.Unraced(t)
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "protocol.md"))
	require.NoError(t, err)
	known := map[string]explore.Claim{}
	for _, c := range explore.Claims() {
		known[c.ID] = c
	}
	simulator, err := os.ReadFile(filepath.Join("..", "..", "docs", "simulator.md"))
	require.NoError(t, err)
	said := regexp.MustCompile(`(\d+) claims`).FindAllStringSubmatch(string(simulator), -1)
	assert.NotEmpty(t, said, "docs/simulator.md says how many claims there are")
	for _, m := range said {
		assert.Equal(t, fmt.Sprint(len(known)), m[1], "docs/simulator.md says how many claims there are")
	}
	broken, proven := 0, 0
	for line := range strings.Lines(string(text)) {
		cells := claimCells.FindAllStringSubmatch(line, -1)
		if strings.HasPrefix(line, "| ") && (strings.Contains(line, " proven ") || strings.Contains(line, " broken ")) {
			assert.NotEmpty(t, cells, "a row whose claim the test cannot read: %s", line)
		}
		for _, m := range cells {
			claim, ok := known[m[1]]
			if !assert.True(t, ok, "there is no claim %s", m[1]) {
				continue
			}
			want := map[string]explore.Verdict{"proven": explore.Exclusive, "broken": explore.Violated}[m[2]]
			assert.Equal(t, want, claim.Expected, "%s is called %s", m[1], m[2])
			if m[2] == "proven" {
				proven++
				continue
			}
			broken++
			stdout, _ := expect(t, exitDone, "explore", "--claim", m[1])
			assert.Contains(t, stdout, "inside: ", "%s: the run that breaks it", m[1])
		}
	}
	assert.Greater(t, proven, 30)
	assert.Greater(t, broken, 15)
}
