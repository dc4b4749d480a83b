package terminal

import (
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sampleTable() *Table {
	t := NewTable(Column{Head: "NAME"}, Column{Head: "N", Right: true}, Column{Head: "WHY", Wrap: true}, Column{Head: "SPARE", Spare: true})
	t.Row("alpha", "7", "a reason of several words that does not fit into a narrow column", "0123456789")
	t.Row("b", "1,234", "short", "x")
	return t
}

// TestTableFits: broken between words, the spare column left out and named, and nothing wider than the screen.
func TestTableFits(t *testing.T) {
	for _, width := range []int{54, 60, 80, 120, 200} {
		out := sampleTable().Render(width, true)
		for line := range strings.Lines(out) {
			assert.LessOrEqual(t, text.StringWidthWithoutEscSequences(strings.TrimSuffix(line, "\n")), width, "at %d columns: %q", width, line)
		}
		flat := strings.Join(strings.Fields(text.StripEscape(out)), " ")
		assert.Contains(t, flat, "alpha")
		for _, word := range []string{"reason", "several", "narrow", "column", "1,234"} {
			assert.Contains(t, flat, word, "at %d columns", width)
		}
	}
	narrow := sampleTable().Render(54, false)
	require.NotContains(t, narrow, "\x1b")
	assert.Equal(t, `NAME       N  WHY                           SPARE
alpha      7  a reason of several words     0123456789
              that does not fit into a
              narrow column
b      1,234  short                         x
`, narrow)
	assert.Contains(t, sampleTable().Render(49, false), "(no room for SPARE: ", "words are worth more than a spare column")
}

// TestTableInAPipe: one line a row, whatever the words.
func TestTableInAPipe(t *testing.T) {
	out := sampleTable().Render(0, false)
	assert.Equal(t, "NAME       N  WHY                                                               SPARE\n"+
		"alpha      7  a reason of several words that does not fit into a narrow column  0123456789\n"+
		"b      1,234  short                                                             x\n", out)
	assert.Equal(t, "HEAD\n", NewTable(Column{Head: "HEAD"}).Render(0, false))
}

func TestInk(t *testing.T) {
	assert.Equal(t, "broken", Ink(false).Bad("broken"))
	assert.Equal(t, "\x1b[1;31mbroken\x1b[0m", Ink(true).Bad("broken"))
	assert.Equal(t, "", Ink(true).Good(""))
}

func TestBar(t *testing.T) {
	assert.Equal(t, "[....................]", Bar(-1))
	assert.Equal(t, "[##########..........]", Bar(0.5))
	assert.Equal(t, "[####################]", Bar(2))
}
