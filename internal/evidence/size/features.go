package main

import (
	_ "embed"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed features.txt
var featuresText string

// A part is what of a tree serves one feature alone: a folder, a file, or declarations in a file.
type part struct {
	feature, path string
	names         []string
}

func parts() (all []part) {
	feature := ""
	for line := range strings.Lines(featuresText) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case line[0] != ' ':
			feature = strings.TrimSpace(line)
		default:
			all = append(all, part{feature, words[0], words[1:]})
		}
	}
	return all
}

const without, share = "Go lines of code without these features", "of the lines of 9012607, in percent"

// linesThen is how many lines of code 9012607 has.
const linesThen = 35_878

func featureRows() (rows []string) {
	for _, p := range parts() {
		if !slices.Contains(rows, p.feature) {
			rows = append(rows, p.feature)
		}
	}
	return append(rows, without, share)
}

// countFeatures counts the code of each feature, and of the rest. What a tree does not have counts nothing.
func countFeatures(root string) (counts, error) {
	whole, err := count(root)
	if err != nil {
		return nil, err
	}
	c := counts{without: whole["Go lines of code, without tests"]}
	for _, p := range parts() {
		n, err := p.count(root)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		c[p.feature] += n
		c[without] -= n
	}
	c[share] = (100*c[without] + linesThen/2) / linesThen
	return c, nil
}

func (p part) count(root string) (total int, err error) {
	place := filepath.Join(root, p.path)
	if !strings.HasSuffix(place, ".go") {
		c, err := count(place)
		return c["Go lines of code, without tests"], err
	}
	text, err := os.ReadFile(place)
	if err != nil || len(p.names) == 0 {
		total, _ = lines(text)
		return total, err
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, place, text, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	for _, decl := range file.Decls {
		if slices.ContainsFunc(p.names, func(name string) bool { return declares(decl, name) }) {
			code, _ := lines(text[files.Position(decl.Pos()).Offset:files.Position(decl.End()).Offset])
			total += code
		}
	}
	return total, nil
}

// declares tells whether a declaration is a function, a method or a type of that name, or a method of the type.
func declares(decl ast.Decl, name string) bool {
	if f, ok := decl.(*ast.FuncDecl); ok {
		return f.Name.Name == name || f.Recv != nil && receiver(f.Recv.List[0].Type) == name
	}
	return slices.ContainsFunc(decl.(*ast.GenDecl).Specs, func(s ast.Spec) bool {
		t, ok := s.(*ast.TypeSpec)
		return ok && t.Name.Name == name
	})
}
