package main

import (
	_ "embed"
	"html/template"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
)

// report is what a command has to say: on the terminal, and as one HTML page that loads nothing from a network.
type report struct {
	Title string
	Parts []part
}

// part is a paragraph of a report: a heading, lines and a table, each of which may be missing.
type part struct {
	Head  string
	Lines []string
	Table *textTable
	page  bool // it stands on the page alone
}

// add adds a part. One without lines and rows is left out.
func (r *report) add(p part) {
	if len(p.Lines) > 0 || p.Table != nil && len(p.Table.Rows) > 0 {
		r.Parts = append(r.Parts, p)
	}
}

// print writes a report for a terminal.
func (r *report) print(out *strings.Builder, env *environment) {
	for i, p := range r.Parts {
		if p.page {
			continue
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		indent := ""
		if p.Head != "" {
			out.WriteString(p.Head + "\n")
			indent = "  "
		}
		for _, line := range p.Lines {
			out.WriteString(indent + safe(line) + "\n")
		}
		if p.Table != nil {
			out.WriteString(p.Table.Render(env.screen(), env.ink()))
		}
	}
}

//go:embed report.html
var reportLayout string

//go:embed report.css
var reportStyle template.CSS

var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"command": func(line string) bool { return strings.HasPrefix(line, "lockmigrate ") },
	"plain":   text.StripEscape,
}).Parse(reportLayout))

// write writes a report as a page.
func (r *report) write(out io.Writer) error {
	return reportPage.Execute(out, struct {
		*report
		Style template.CSS
	}{r, serve.Style() + reportStyle})
}
