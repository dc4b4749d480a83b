//go:build !js

package main

import (
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"

	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
)

//go:embed page.html
var html string

//go:embed page.css
var style string

//go:embed page.js
var script string

var sheet = template.Must(template.New("playground").Parse(html))

// writePage writes one file, which loads nothing. Program is the gzipped WebAssembly, exec Go's wasm_exec.js.
func writePage(out io.Writer, program []byte, exec string) error {
	return sheet.Execute(out, map[string]any{
		"Style": serve.Style() + template.CSS(style), "Exec": template.JS(exec), "Script": template.JS(script), "Wasm": template.JSStr(base64.StdEncoding.EncodeToString(program)),
	})
}
