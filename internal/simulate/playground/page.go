package playground

import (
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"

	"github.com/lockmigrate/lockmigrate/internal/page"
	"github.com/lockmigrate/lockmigrate/internal/simulate/report"
)

//go:embed page.html
var html string

//go:embed page.js
var script string

var sheet = template.Must(template.New("playground").Parse(html))

// Home is where the page leads to.
const Home = "https://github.com/lockmigrate/lockmigrate"

// Write writes the page: one file, which loads nothing. Program is the gzipped WebAssembly of cmd/playground, exec Go's wasm_exec.js.
func Write(out io.Writer, program []byte, exec string) error {
	return sheet.Execute(out, map[string]any{
		"Style": page.Style(), "Picture": report.Style(), "Home": Home, "Exec": template.JS(exec), "Script": template.JS(script),
		"Wasm": template.JSStr(base64.StdEncoding.EncodeToString(program)),
	})
}
