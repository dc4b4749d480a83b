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
}

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
		t.Columns = append(t.Columns, column{head, strings.Contains(how, "right"), strings.Contains(how, "wrap"), strings.Contains(how, "spare")})
	}
	return t
}

// Row adds a row: one cell for each column.
func (t *textTable) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// Headed tells that a column has a heading.
func (t *textTable) Headed() bool {
	return slices.ContainsFunc(t.Columns, func(c column) bool { return c.Head != "" })
}

// gap is the room between columns.
const gap = 2

// Render lays the table out for a screen of that many columns. 0 is a file or pipe: nothing is broken or left out.
func (t *textTable) Render(width int, ink palette) string {
	shown := make([]int, len(t.Columns))
	for i := range shown {
		shown[i] = i
	}
	var without []string
	widths := t.fit(shown, width)
	for widths == nil { // the rightmost spare column goes
		at := len(shown) - 1
		for at >= 0 && !t.Columns[shown[at]].spare {
			at--
		}
		if at < 0 {
			widths = t.natural(shown)
			break
		}
		without = append([]string{t.Columns[shown[at]].Head}, without...)
		shown = append(shown[:at:at], shown[at+1:]...)
		widths = t.fit(shown, width)
	}
	out := t.draw(shown, widths, ink)
	if len(without) > 0 {
		out += ink.Dim("(no room for "+strings.Join(without, ", ")+": widen the terminal, or see --json)") + "\n"
	}
	return out
}

// natural is what each column needs.
func (t *textTable) natural(shown []int) []int {
	widths := make([]int, len(shown))
	for i, c := range shown {
		widths[i] = text.LongestLineLen(t.Columns[c].Head)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], text.LongestLineLen(row[c]))
		}
	}
	return widths
}

// How narrow a column of words becomes at most: while there is a spare column to leave out, and else.
const comfortable, narrowest = 24, 8

// fit narrows the columns that may be broken, the widest first. It returns nil where that is not enough.
func (t *textTable) fit(shown []int, width int) []int {
	widths := t.natural(shown)
	over := gap*(len(shown)-1) - width
	for _, w := range widths {
		over += w
	}
	least := narrowest
	for _, c := range shown {
		if t.Columns[c].spare {
			least = comfortable
		}
	}
	for width > 0 && over > 0 {
		widest := -1
		for i, c := range shown {
			if t.Columns[c].wrap && widths[i] > least && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return nil
		}
		widths[widest]--
		over--
	}
	return widths
}

func (t *textTable) draw(shown, widths []int, ink palette) string {
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
		if t.Columns[c].Right {
			align = text.AlignRight
		}
		configs[i] = table.ColumnConfig{Number: i + 1, Align: align, AlignHeader: align, WidthMin: widths[i], WidthMax: widths[i], WidthMaxEnforcer: text.WrapSoft}
		head[i] = ink.Head(t.Columns[c].Head)
	}
	w.SetColumnConfigs(configs)
	if t.Headed() {
		w.AppendHeader(head)
	}
	for _, row := range t.Rows {
		cells := make(table.Row, len(shown))
		for i, c := range shown {
			cells[i] = row[c]
		}
		w.AppendRow(cells)
	}
	return w.Render() + "\n"
}
