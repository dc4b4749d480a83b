// Package pictures makes the pictures of the documents from what the tools really print and show: `make pictures`.
package pictures

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// The cell of a terminal in a picture.
const (
	cellWidth  = 8.4
	lineHeight = 19
	margin     = 16
)

const terminalStyle = `
    rect { fill: #f6f8fa; stroke: #d0d7de }
    text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
    .s1 { font-weight: 700 } .s2 { fill: #656d76 } .s31 { fill: #b91c1c } .s32 { fill: #15803d } .s33 { fill: #a16207 }
    @media (prefers-color-scheme: dark) {
      rect { fill: #0d1117; stroke: #3d444d }
      text { fill: #e6edf3 }
      .s2 { fill: #9198a1 } .s31 { fill: #f87171 } .s32 { fill: #4ade80 } .s33 { fill: #facc15 }
    }`

var sequence = regexp.MustCompile("\x1b\\[([0-9;]*)([A-Za-z])")

// Terminal draws what a command printed on a terminal as an SVG, colours included, light or dark as its reader is.
func Terminal(command, output string) string {
	lines := append([]string{"\x1b[1m$ " + command + "\x1b[0m"}, strings.Split(strings.TrimRight(strings.ReplaceAll(output, "\r", ""), "\n"), "\n")...)
	columns := 0
	for _, line := range lines {
		columns = max(columns, text.StringWidthWithoutEscSequences(line))
	}
	width, height := 2*margin+int(float64(columns)*cellWidth+0.5), 2*margin+lineHeight*len(lines)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, html.EscapeString("What "+command+" prints"))
	fmt.Fprintf(&b, "\n  <style>%s\n  </style>\n  <rect x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", terminalStyle, width-1, height-1)
	for i, line := range lines {
		if strings.TrimSpace(line) != "" {
			fmt.Fprintf(&b, "  <text x=\"%d\" y=\"%d\" textLength=\"%.0f\">%s</text>\n", margin, margin+lineHeight*i+14, float64(text.StringWidthWithoutEscSequences(line))*cellWidth, spans(line))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// spans turns a line's escape sequences into classes.
func spans(line string) string {
	var b strings.Builder
	open := false
	write := func(s string) { b.WriteString(html.EscapeString(s)) }
	for {
		at := sequence.FindStringSubmatchIndex(line)
		if at == nil {
			write(line)
			break
		}
		write(line[:at[0]])
		codes, kind := line[at[2]:at[3]], line[at[4]:at[5]]
		line = line[at[1]:]
		if kind != "m" {
			continue
		}
		if open {
			b.WriteString("</tspan>")
			open = false
		}
		var classes []string
		for _, code := range strings.Split(codes, ";") {
			if n, err := strconv.Atoi(code); err == nil && n > 0 {
				classes = append(classes, "s"+code)
			}
		}
		if len(classes) > 0 {
			fmt.Fprintf(&b, `<tspan class="%s">`, strings.Join(classes, " "))
			open = true
		}
	}
	if open {
		b.WriteString("</tspan>")
	}
	return b.String()
}
