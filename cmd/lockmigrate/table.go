package main

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// column is one column of a table.
type column struct {
	Head  string // where no column has one, the table has no heading
	Right bool   // numbers end at the right
	wrap  bool   // is broken between words where the table is wider than the screen
	spare bool   // is left out where the table is too wide even then; the table says so
	width int    // that its cells need
}

// gap is the room between columns.
const gap = 2

// leftOut stands for a column that is left out. It takes no room, not even the gap.
var leftOut = column{width: -gap}

// textTable lays out rows in columns. It is not safe for concurrent use.
type textTable struct {
	Columns []column
	Rows    [][]string
}

// newTable returns a table without rows. A column is its heading, and behind | what it is: "TURNS|right spare".
func newTable(columns ...string) *textTable {
	t := &textTable{}
	for _, c := range columns {
		head, how, _ := strings.Cut(c, "|")
		t.Columns = append(t.Columns, column{head, strings.Contains(how, "right"), strings.Contains(how, "wrap"), strings.Contains(how, "spare"), text.LongestLineLen(head)})
	}
	return t
}

// Row adds a row: one cell for each column.
func (t *textTable) Row(cells ...string) {
	t.Rows = append(t.Rows, cells)
	for i, cell := range cells {
		t.Columns[i].width = max(t.Columns[i].width, text.LongestLineLen(cell))
	}
}

// Headed tells that a column has a heading.
func (t *textTable) Headed() bool {
	return slices.ContainsFunc(t.Columns, func(c column) bool { return c.Head != "" })
}

// Render lays the table out for a screen of that many columns. 0 is a file or pipe: nothing is broken or left out.
func (t *textTable) Render(width int, ink palette) string {
	var without []string
	left := slices.Clone(t.Columns)
	shown, fits := fit(left, width)
	for at := len(left) - 1; !fits && at >= 0; at-- { // the rightmost spare column goes first
		if left[at].spare {
			without = append([]string{left[at].Head}, without...)
			left[at] = leftOut
			shown, fits = fit(left, width)
		}
	}
	out := t.draw(shown, ink)
	if len(without) > 0 {
		out += ink.Dim("(no room for "+strings.Join(without, ", ")+": widen the terminal, or see --json)") + "\n"
	}
	return out
}

// How narrow a column of words becomes at most: while there is a spare column to leave out, and else.
const comfortable, narrowest = 24, 8

// fit narrows the columns that may be broken, the widest first. It returns them as they are where that is not enough.
func fit(columns []column, width int) (fitted []column, fits bool) {
	fitted = slices.Clone(columns)
	over, least := -gap-width, narrowest
	for _, c := range fitted {
		over += c.width + gap
		if c.spare {
			least = comfortable
		}
	}
	for ; width > 0 && over > 0; over-- {
		widest := -1
		for i, c := range fitted {
			if c.wrap && c.width > least && (widest < 0 || c.width > fitted[widest].width) {
				widest = i
			}
		}
		if widest < 0 {
			return columns, false
		}
		fitted[widest].width--
	}
	return fitted, true
}

func (t *textTable) draw(shown []column, ink palette) string {
	w := table.NewWriter()
	w.SuppressTrailingSpaces()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", strings.Repeat(" ", gap)
	style.Format.Header = text.FormatDefault
	w.SetStyle(style)
	configs := make([]table.ColumnConfig, len(shown))
	head := make(table.Row, len(shown))
	for i, c := range shown {
		align := text.AlignLeft
		if c.Right {
			align = text.AlignRight
		}
		configs[i] = table.ColumnConfig{Number: i + 1, Hidden: c.width < 0, Align: align, AlignHeader: align, WidthMin: c.width, WidthMax: c.width, WidthMaxEnforcer: text.WrapSoft}
		head[i] = ink.Head(c.Head)
	}
	w.SetColumnConfigs(configs)
	if t.Headed() {
		w.AppendHeader(head)
	}
	for _, row := range t.Rows {
		cells := make(table.Row, len(row))
		for i, cell := range row {
			cells[i] = cell
		}
		w.AppendRow(cells)
	}
	return w.Render() + "\n"
}
