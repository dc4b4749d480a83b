// Command size counts what somebody has to read: lines, packages, names, options, script arguments. It counts this tree, or the
// commits that are named:
//
//	go run ./internal/evidence/size f7c5d1e HEAD
//
// With -features it counts the Go lines of each feature that is younger than 9012607, by features.txt, and the lines of the rest:
//
//	go run ./internal/evidence/size -features 9012607 HEAD
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// counts are the figures of one tree, in the order in which they are shown.
type counts map[string]int

var rows = []string{
	"Go lines of code, without tests", "Go lines of comments, without tests", "Go lines of code of tests", "packages",
	"exported names of the public packages", "options: legacy", "options: modern", "options: compat", "options: others",
	"scripts", "script lines of code", "script arguments",
}

func main() {
	younger := flag.Bool("features", false, "count the features of features.txt, and what is left without them")
	flag.Parse()
	of, shown := count, rows
	if *younger {
		of, shown = countFeatures, featureRows()
	}
	if err := run(of, shown, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(count func(root string) (counts, error), rows, commits []string) error {
	trees, names := []counts{}, commits
	if len(commits) == 0 {
		names = []string{"this tree"}
		c, err := count(".")
		if err != nil {
			return err
		}
		trees = append(trees, c)
	}
	for _, commit := range commits {
		c, err := countCommit(count, commit)
		if err != nil {
			return fmt.Errorf("%s: %w", commit, err)
		}
		trees = append(trees, c)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%s\t\n", strings.Join(append([]string{""}, names...), "\t"))
	for _, row := range rows {
		fmt.Fprint(table, row)
		for _, c := range trees {
			fmt.Fprintf(table, "\t%d", c[row])
		}
		fmt.Fprintln(table, "\t")
	}
	return table.Flush()
}

func countCommit(count func(root string) (counts, error), commit string) (counts, error) {
	dir, err := os.MkdirTemp("", "size")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	archive := exec.Command("git", "archive", commit)
	unpack := exec.Command("tar", "-x", "-C", dir)
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		return nil, err
	}
	archive.Stderr, unpack.Stderr = os.Stderr, os.Stderr
	if err := unpack.Start(); err != nil {
		return nil, err
	}
	if err := archive.Run(); err != nil {
		return nil, err
	}
	if err := unpack.Wait(); err != nil {
		return nil, err
	}
	return count(dir)
}

// count walks a tree. Modules of their own, such as bench and the holders, count with their lines only.
func count(root string) (counts, error) {
	c, packages := counts{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root:
			return filepath.SkipDir
		case strings.HasSuffix(path, ".lua") && strings.Contains(path, "internal/scripts"):
			return c.script(path)
		case strings.HasSuffix(path, ".go"):
			return c.source(root, path, packages)
		}
		return nil
	})
	c["packages"] = len(packages)
	return c, err
}

func (c counts) source(root, path string, packages map[string]bool) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	code, comments := lines(text)
	if strings.HasSuffix(path, "_test.go") {
		c["Go lines of code of tests"] += code
		return nil
	}
	c["Go lines of code, without tests"] += code
	c["Go lines of comments, without tests"] += comments
	folder, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	if strings.HasPrefix(folder, "bench") || strings.Contains(folder, "testdata") {
		return nil
	}
	packages[folder] = true
	if strings.HasPrefix(folder, "internal") || strings.HasPrefix(folder, "cmd") {
		return nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	c.names(folder, file)
	return nil
}

// lines tells lines with code from those with comments alone.
func lines(text []byte) (code, comments int) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	isCode, isComment := map[int]bool{}, map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue
		}
		first := file.Line(pos)
		for n := first; n <= first+strings.Count(literal, "\n"); n++ {
			if tok == token.COMMENT {
				isComment[n] = true
			} else {
				isCode[n] = true
			}
		}
	}
	for n := range isComment {
		if !isCode[n] {
			comments++
		}
	}
	return len(isCode), comments
}

// names counts what a user of a public package can write: types, functions, values, methods, fields. Options are also counted
// alone.
func (c counts) names(folder string, file *ast.File) {
	count := func(names ...*ast.Ident) (n int) {
		for _, name := range names {
			if name.IsExported() {
				n++
			}
		}
		return n
	}
	total := 0
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			if f.Recv == nil || ast.IsExported(receiver(f.Recv.List[0].Type)) {
				total += count(f.Name)
			}
			continue
		}
		for _, spec := range decl.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				total += count(spec.Names...)
			case *ast.TypeSpec:
				if !spec.Name.IsExported() {
					continue
				}
				total++
				fields := &ast.FieldList{}
				switch t := spec.Type.(type) {
				case *ast.StructType:
					fields = t.Fields
				case *ast.InterfaceType:
					fields = t.Methods
				}
				n := 0
				for _, field := range fields.List {
					n += count(field.Names...)
				}
				total += n
				if strings.HasSuffix(spec.Name.Name, "Options") {
					row := "options: " + folder
					if spec.Name.Name != "Options" || !slices.Contains(rows, row) {
						row = "options: others"
					}
					c[row] += n
				}
			}
		}
	}
	c["exported names of the public packages"] += total
}

// receiver is the name of a method's type.
func receiver(of ast.Expr) string {
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

var (
	numbered = regexp.MustCompile(`(KEYS|ARGV)\[(\d+)\]`)
	named    = regexp.MustCompile(`(?m)^-- (?:KEY|ARGV|WORD)S? +\[?[a-z_]+`)
)

// script counts arguments by name where a header names them, and by their highest number elsewhere.
func (c counts) script(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c["scripts"]++
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			c["script lines of code"]++
		}
	}
	if names := named.FindAll(text, -1); len(names) > 0 {
		c["script arguments"] += len(names)
		return nil
	}
	highest := map[string]int{}
	for _, m := range numbered.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return err
		}
		highest[m[1]] = max(highest[m[1]], n)
	}
	c["script arguments"] += highest["KEYS"] + highest["ARGV"]
	return nil
}
