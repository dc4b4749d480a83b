package servers

import (
	"fmt"
	"strings"
)

// Markdown is the table of docs/servers.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| |")
	for _, r := range Ranges {
		fmt.Fprintf(&b, " %s |", r.Name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(Ranges)) + "\n")
	for _, f := range Features {
		fmt.Fprintf(&b, "| %s |", f.Name)
		for i := range Ranges {
			c := f.At(i)
			text := string(c.How)
			if c.How == Partly || c.How == Absent {
				text = c.Note
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
