package lockmigrate_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exported are the folders of the packages that people import.
var exported = []string{".", "legacy", "modern", "modern/redisson", "modern/quorum", "compat", "prommetrics", "pool/cluster", "pool/sentinel", "pool/rawconn"}

// inPackage is a name as the texts give it: modern.New, compat.Options.Member, or Options.Member of any package.
var inPackage = regexp.MustCompile(`(?:^|[^\w./])(lockmigrate|legacy|modern|redisson|quorum|compat|prommetrics|cluster|sentinel|rawconn|Options)\.([A-Z]\w*)(?:\.([A-Z]\w*))?`)

// TestTextsNameWhatExists: what a document, or a comment, names of the public packages is there.
func TestTextsNameWhatExists(t *testing.T) {
	names := map[string]bool{} // lockmigrate.Error, lockmigrate.Error.Reason, Options.TTL
	for _, folder := range exported {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				declared(t, file, names)
			}
		}
	}
	texts := map[string]string{}
	for _, file := range append(tracked(t, "*.md"), tracked(t, "*.go")...) {
		if strings.HasSuffix(file, ".go") {
			texts[file] = comments(t, file)
			continue
		}
		texts[file] = read(t, file)
	}
	found := 0
	for file, text := range texts {
		for _, m := range inPackage.FindAllStringSubmatch(text, -1) {
			if m[1] == "Options" && (strings.HasPrefix(file, "internal/") || strings.HasPrefix(file, "cmd/")) {
				continue // those of an inner package
			}
			found++
			name := m[1] + "." + m[2]
			assert.True(t, names[name] && (m[3] == "" || names[name+"."+m[3]]), "%s: there is no%s", file, " "+strings.TrimSpace(m[0]))
		}
	}
	assert.Greater(t, found, 50)
}

// declared adds what a file declares for others.
func declared(t *testing.T, file string, names map[string]bool) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	add := func(words ...string) { names[strings.Join(words, ".")] = true }
	pkg := parsed.Name.Name
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(pkg, d.Name.Name)
				continue
			}
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			add(pkg, of.(*ast.Ident).Name, d.Name.Name)
			add(of.(*ast.Ident).Name, d.Name.Name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						add(pkg, name.Name)
					}
				case *ast.TypeSpec:
					add(pkg, s.Name.Name)
					fields := &ast.FieldList{}
					switch kind := s.Type.(type) {
					case *ast.StructType:
						fields = kind.Fields
					case *ast.InterfaceType:
						fields = kind.Methods
					}
					for _, f := range fields.List {
						for _, name := range f.Names {
							add(pkg, s.Name.Name, name.Name)
							add(s.Name.Name, name.Name)
						}
					}
				}
			}
		}
	}
}

func comments(t *testing.T, file string) string {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	require.NoError(t, err)
	var b strings.Builder
	for _, group := range parsed.Comments {
		b.WriteString(group.Text())
	}
	return b.String()
}

// walkStep is a step of a walk: a file, and what it holds.
var walkStep = regexp.MustCompile("`([a-z0-9_/]+\\.(?:go|lua|txt)):? ?([^`]*)`")

// TestTheWalksLeadThroughTheCode keeps the walks of ARCHITECTURE.md true: each file exists and has the function, type or table
// that the walk names, and no walk is longer than the bound that the code was built for.
func TestTheWalksLeadThroughTheCode(t *testing.T) {
	_, walks, found := strings.Cut(read(t, "ARCHITECTURE.md"), "## Three walks")
	require.True(t, found)
	walks, _, _ = strings.Cut(walks, "\n## ")
	longest := map[string]int{"Acquire beside an old client": 15, "Why was it lost?": 15, "A new dialect": 5, "A new script argument": 10}
	seen := 0
	for _, walk := range strings.Split(walks, "\n**")[1:] {
		title, _, _ := strings.Cut(walk, "**")
		files := map[string]bool{}
		for _, step := range walkStep.FindAllStringSubmatch(walk, -1) {
			files[step[1]] = true
			seen++
			isThere(t, step)
		}
		said := regexp.MustCompile(`\((\d+) files\)`).FindStringSubmatch(title)
		if assert.NotNil(t, said, "the walk %q does not say how many files it has", title) {
			assert.Equal(t, said[1], strconv.Itoa(len(files)), "files of the walk %q", title)
		}
		for name, most := range longest {
			if strings.HasPrefix(title, name) {
				assert.LessOrEqual(t, len(files), most, "files of the walk %q", name)
				assert.NotEmpty(t, files, name)
				delete(longest, name)
			}
		}
	}
	assert.Empty(t, longest, "walks that are missing")
	assert.Greater(t, seen, 20, "steps")
}

// isThere wants the file of a step, and in it what the step names.
func isThere(t *testing.T, step []string) {
	t.Helper()
	source, err := os.ReadFile(step[1])
	if !assert.NoError(t, err, step[0]) {
		return
	}
	for _, name := range strings.Split(step[2], ",") {
		if name = strings.TrimSpace(name); name != "" {
			declared := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const |\t|local function )` + regexp.QuoteMeta(name) + `\b`)
			assert.True(t, declared.Match(source) || strings.HasSuffix(step[1], ".lua") && strings.Contains(string(source), name), "%s has no %s", step[1], name)
		}
	}
}

// TestTheProtocolsPageLeadsToTheCode wants the file and the function behind each block of docs/protocol.md.
func TestTheProtocolsPageLeadsToTheCode(t *testing.T) {
	steps := walkStep.FindAllStringSubmatch(read(t, "docs/protocol.md"), -1)
	assert.Greater(t, len(steps), 10)
	for _, step := range steps {
		isThere(t, step)
	}
}
