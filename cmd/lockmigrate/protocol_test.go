package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
)

var update = flag.Bool("update", false, "write the figures of docs/benchmarks.md into docs/protocol.md")

// claimCells are a claim and what the protocol's page says of it, in neighbouring cells of a table.
var claimCells = regexp.MustCompile("\\| `([A-Za-z0-9-]+)` \\|(?: ([BHLMS ]+) \\| [^|]+ \\|)? (proven|broken) ")

// TestTheProtocolsPageSaysWhatTheClaimsSay: each claim that docs/protocol.md names exists, stands in the tool with that verdict and with those
// clients, and is printed with it by the command that the page gives. TestClaims shows that the verdicts are true.
func TestTheProtocolsPageSaysWhatTheClaimsSay(t *testing.T) {
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
			want := map[string]explore.Verdict{"proven": explore.Exclusive, "broken": explore.Violated}[m[3]]
			assert.Equal(t, want, claim.Expected, "%s is called %s", m[1], m[3])
			if m[2] != "" {
				assert.Equal(t, claim.Clients, m[2], "the clients of %s", m[1])
			}
			if m[3] == "proven" {
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

// costs are the rows of docs/benchmarks.md that the protocol's page repeats.
var costs = []string{
	"allocations per acquire + release",
	"bridge, whole CPU / modern",
	"handoff between processes, p50 / blpop",
	"the same after an old client's DEL, p50 / blpop",
	"handoffs/s, 4 x 4 / blpop",
	"round trips per contended acquisition, 4 x 4",
	"400 Lockers / 4, turns/s, bridge",
	"memory of 5,000 waiters of one process, MiB, bridge",
	"bytes left on the server for each lock after a minute, bridge",
	"bridge, locks/s, 64 goroutines, distinct keys / raw",
}

// TestTheProtocolsPageRepeatsTheBenchmarks: the figures are those of docs/benchmarks.md; -update writes them.
func TestTheProtocolsPageRepeatsTheBenchmarks(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "protocol.md")
	benchmarks, err := os.ReadFile(filepath.Join("..", "..", "docs", "benchmarks.md"))
	require.NoError(t, err)
	table := "| what | measured |\n|---|---|\n"
	for _, name := range costs {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \| [^|]+ \| ([^|]+) \|`).FindSubmatch(benchmarks)
		if assert.NotNil(t, row, "docs/benchmarks.md has no row %q", name) {
			table += "| " + name + " | " + string(row[1]) + " |\n"
		}
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	const begin, end = "<!-- cost: from benchmarks.md -->\n", "<!-- end of cost -->"
	before, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	present, after, found := strings.Cut(rest, end)
	require.True(t, found)
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+"\n"+table+"\n"+end+after), 0o644))
		return
	}
	assert.Equal(t, "\n"+table+"\n", present, "go test ./cmd/lockmigrate -run TestTheProtocolsPage -update writes it")
}
