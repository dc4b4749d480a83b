//go:build !js

// Command playground writes the playground, a static page of one file: it compiles itself to WebAssembly and puts that into the page.
package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/serve"
)

//go:embed page.html
var html string

//go:embed page.css
var style string

//go:embed page.js
var script string

var sheet = template.Must(template.New("playground").Parse(html))

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./cmd/playground FILE.html")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// write writes the page, which loads nothing: the program in it is gzipped WebAssembly, beside Go's wasm_exec.js.
func write(file string) error {
	folder, err := os.MkdirTemp("", "playground")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	wasm := filepath.Join(folder, "playground.wasm")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", wasm, "github.com/lockmigrate/lockmigrate/cmd/playground")
	build.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	program, err := os.ReadFile(wasm)
	if err != nil {
		return err
	}
	var packed, out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is a valid one
	_, err = z.Write(program)
	if err = errors.Join(err, z.Close()); err != nil {
		return err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	glue, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "lib", "wasm", "wasm_exec.js"))
	if err != nil {
		return err
	}
	if err := sheet.Execute(&out, map[string]any{
		"Style": serve.Style() + template.CSS(style), "Exec": template.JS(glue), "Script": template.JS(script),
		"Wasm": template.JSStr(base64.StdEncoding.EncodeToString(packed.Bytes())),
	}); err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MiB, the program in it %.1f MiB compressed\n", file, float64(out.Len())/(1<<20), float64(packed.Len())/(1<<20))
	return os.WriteFile(file, out.Bytes(), 0o644)
}
