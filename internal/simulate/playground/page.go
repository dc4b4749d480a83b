package playground

import (
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"

	"github.com/lockmigrate/lockmigrate/internal/operate/page"
)

//go:embed page.html
var html string

//go:embed page.css
var style string

//go:embed page.js
var script string

var sheet = template.Must(template.New("playground").Parse(html))

// Home is where the page leads to.
const Home = "https://github.com/lockmigrate/lockmigrate"

// Write writes the page on which a reader moves sliders: one file, which loads nothing. Program is the gzipped WebAssembly of
// cmd/playground, exec Go's wasm_exec.js.
func Write(out io.Writer, program []byte, exec string) error {
	return write(out, nil, base64.StdEncoding.EncodeToString(program), exec)
}

// Write writes the page of a sweep that is over: the same page, with what was found in place of the program.
func (s *Sweep) Write(out io.Writer) error { return write(out, s, "", "") }

func write(out io.Writer, s *Sweep, wasm, exec string) error {
	return sheet.Execute(out, map[string]any{
		"Style": page.Style() + template.CSS(style), "Home": Home, "Sweep": s, "Exec": template.JS(exec), "Script": template.JS(script), "Wasm": template.JSStr(wasm),
	})
}
