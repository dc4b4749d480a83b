package sim

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// linted are the packages whose output must depend on nothing but their input: the machines, the
// engine and its surroundings, the explorer.
var linted = []string{"../../protocol", ".", "../model", "../explore"}

// TestNothingDependsOnTheOutside forbids clocks, random numbers from elsewhere, and loops over maps.
func TestNothingDependsOnTheOutside(t *testing.T) {
	fset := token.NewFileSet()
	compiled := exports(t)
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	for _, dir := range linted {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var files []*ast.File
			names, err := filepath.Glob(filepath.Join(dir, "*.go"))
			require.NoError(t, err)
			for _, name := range names {
				if !strings.HasSuffix(name, "_test.go") {
					f, err := parser.ParseFile(fset, name, nil, 0)
					require.NoError(t, err)
					files = append(files, f)
				}
			}
			require.NotEmpty(t, files)
			info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
			_, err = (&types.Config{Importer: imports}).Check(dir, fset, files, info)
			require.NoError(t, err)
			for _, f := range files {
				lintFile(t, fset, f, info)
			}
		})
	}
}

// exports are the files in which the compiler keeps the types of the packages that the linted ones import.
func exports(t *testing.T) map[string]string {
	out, err := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}, linted...)...).Output()
	require.NoError(t, err)
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[path] = file
	}
	return files
}

var forbidden = map[string]string{
	"time.Now": "", "time.Since": "", "time.Until": "", "time.Sleep": "", "time.After": "", "time.AfterFunc": "",
	"time.NewTimer": "", "time.NewTicker": "", "time.Tick": "", "os.Getenv": "",
}

func lintFile(t *testing.T, fset *token.FileSet, f *ast.File, info *types.Info) {
	for _, imported := range f.Imports {
		if path := strings.Trim(imported.Path.Value, `"`); strings.HasPrefix(path, "math/rand") || path == "crypto/rand" {
			t.Errorf("%s: imports %s", fset.Position(imported.Pos()), path)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				if _, bad := forbidden[x.Name+"."+n.Sel.Name]; bad {
					t.Errorf("%s: uses %s.%s", fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			}
		case *ast.RangeStmt:
			if _, isMap := info.Types[n.X].Type.Underlying().(*types.Map); isMap {
				t.Errorf("%s: loops over a map, whose order is random", fset.Position(n.Pos()))
			}
		case *ast.GoStmt:
			assert.True(t, strings.Contains(fset.Position(n.Pos()).Filename, "sweep"), "%s: starts a goroutine", fset.Position(n.Pos()))
		}
		return true
	})
}
