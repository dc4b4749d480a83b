package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// row is what one fault came to.
type row struct {
	turns            int
	overlaps, legacy int // of tokens, of old locks
	lost             int
	delay            time.Duration
}

const head = `%d rounds of each, on %s. No lock, connection or goroutine was left: the run fails otherwise.

| fault | what happens | promise | turns | overlaps of tokens | of old locks | holders told of a loss | longest overlap |
|---|---|---|---|---|---|---|---|
`

// write puts the table into docs/faults.md.
func write(tb testing.TB, rows []*row) {
	var b strings.Builder
	fmt.Fprintf(&b, head, *rounds, time.Now().UTC().Format(time.DateOnly))
	for i, f := range faults {
		r := rows[i]
		promised, delay := "exclusive", "-"
		if f.promise == told {
			promised = "told"
		}
		if r.delay > 0 {
			delay = r.delay.Round(time.Millisecond).String()
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %s |\n", f.name, f.what, promised, r.turns, r.overlaps, r.legacy, r.lost, delay)
	}
	redistest.Section(tb, docFile(), "faults", "make faults", b.String(), true)
}

func docFile() string { return filepath.Join("..", "..", "..", "..", "docs", "faults.md") }

// check sees to it that the published table has a line for each fault.
func check(tb testing.TB) {
	text, err := os.ReadFile(docFile())
	require.NoError(tb, err)
	for _, f := range faults {
		assert.Contains(tb, string(text), "| "+f.name+" |", "docs/faults.md is older than the suite: run with -update")
	}
}
