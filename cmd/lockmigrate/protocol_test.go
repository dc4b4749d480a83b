package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/explore"
)

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
