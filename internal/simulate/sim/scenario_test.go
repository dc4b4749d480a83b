package sim

import (
	"errors"
	"flag"
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
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

var rewrite = flag.Bool("rewrite", false, "write what the runs show into testdata/scenarios")

// Every file under testdata/scenarios is run; its expectations and its trace must be what it says, and together they show each hazard
// that the documentation names. The race detector watches one run of each. The fleet of scale.txt takes seconds: it is left to a run that names Proofs.
// `go test ./internal/simulate/sim -rewrite` writes them anew: read the difference.
func TestScenarios(t *testing.T) {
	var sum Tally
	for name, s := range scenarios(t) {
		t.Run(name, func(t *testing.T) {
			if name == "scale.txt" {
				redistest.Need(t, redistest.Proofs)
			}
			file := "../../../testdata/scenarios/" + name
			if redistest.Raced {
				s.Seeds = 1
			}
			tally := run(s)
			sum.Add(&tally)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			switch shows := shown(string(text), s, &tally); {
			case redistest.Raced:
			case *rewrite:
				require.NoError(t, os.WriteFile(file, []byte(shows), 0o644))
			default:
				for _, e := range s.Expect {
					got, ok := e.Met(&tally)
					require.True(t, ok, "expected %s, got %d", e, got)
				}
				require.Equal(t, string(text), shows)
			}
		})
	}
	t.Run("every hazard is shown", func(t *testing.T) {
		for h := range Hazards {
			if h != FenceDisorder { // which must never be
				require.Positive(t, sum.Hazards[h], "%s", h)
			}
		}
	})
}

// scenarios reads every file under testdata/scenarios.
func scenarios(t *testing.T) map[string]*Scenario {
	files, err := filepath.Glob("../../../testdata/scenarios/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]*Scenario{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all[filepath.Base(file)], err = Parse(string(text))
		require.NoError(t, err, file)
	}
	return all
}

// run plays all seeds.
func run(s *Scenario) Tally {
	return RunAll(&s.Fleet, s.Seed, max(s.Seeds, 1), nil).Tally
}

// shown is a file as its runs show it: the counts that it expects, and below its rule the story of the first seed.
func shown(text string, s *Scenario, tally *Tally) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 4 && words[0] == "expect" && words[2] == "=" {
			n, _ := Count(tally, words[1])
			line = "expect " + Expectation{What: words[1], Op: "=", N: n}.String() + "\n"
		}
		b.WriteString(line)
		if line != "----\n" {
			continue
		}
		w := World{Trace: func(r *Record) {
			if line := s.Fleet.Line(r); line != "" {
				b.WriteString(line + "\n")
			}
		}}
		w.Run(&s.Fleet, s.Seed)
		break
	}
	return b.String()
}

// TestOnlyTheShareLetsAPollerIn: without it, the fleet of old_poller.txt leaves the old client outside from the moment in
// which two others wait. What it gets, ten seeds together, it gets before.
func TestOnlyTheShareLetsAPollerIn(t *testing.T) {
	s := scenarios(t)["old_poller.txt"]
	for i := range s.Fleet.Clients {
		s.Fleet.Clients[i].Share = 0
	}
	tally := run(s)
	require.Less(t, tally.Entered[model.Legacy], int64(20))
	require.Greater(t, tally.Entered[model.Modern], int64(20000))
}

func TestFormatReadsBack(t *testing.T) {
	for file, s := range scenarios(t) {
		written, began := s.Format(), time.Now()
		again, err := Parse(written)
		require.NoError(t, err, "%s:\n%s", file, written)
		require.Less(t, time.Since(began), 5*time.Second, "%s: 10,000 lines take 20 ms", file) // 16 s when each line looked at all names
		require.Equal(t, s, again, file)
	}
}

// TestShrinksAPlan: a scenario of turns and delays is a plan already: recording it would lose what it says.
func TestShrinksAPlan(t *testing.T) {
	shrunk := 0
	for file, s := range scenarios(t) {
		if s.Fleet.Plan == nil {
			continue
		}
		var w World
		want := w.Run(&s.Fleet, s.Seed)
		planned, was := Planned(&w, &s.Fleet, s.Seed)
		require.Equal(t, want.Hash, was.Hash, file)
		require.Equal(t, want.Hash, w.Run(planned, s.Seed).Hash, "%s: the plan is another run", file)
		if was.Overlaps == 0 {
			continue
		}
		planned.Opening = append(planned.Opening, model.Entry{Key: "another", Value: "1"})
		small := Shrink(&w, planned, 100*time.Millisecond)
		require.Positive(t, w.Run(small, 0).Overlaps, "%s: what was shrunk does not break", file)
		requireMinimal(t, &w, small, 100*time.Millisecond)
		shrunk++
	}
	require.Greater(t, shrunk, 5)
}

func FuzzParse(f *testing.F) {
	f.Add("client a legacy lease=10s hold=1s..2s\nturn a at 0s holds 1s\nat 1s a pauses 2s\nexpect overlaps = 0\n")
	f.Add("client a legacy keys=k:*3@2 release=mine dialect=jedis-uuid patience=1s turns=2\nturn a at 0s holds 1s on k:2\nat 0s a crashes\nat 1s server slews -1s\nnetwork 1ms timeout=2s\n")
	f.Add("client a modern key=other hold=10%:1s/100%:2s fence\nopening other expired 1s ago in jedis-uuid\nserver drift=5ppm\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.Format())
		if err != nil {
			t.Fatalf("%v\n%s", err, s.Format())
		}
		require.Equal(t, s.Format(), again.Format())
	})
}

// TestUnknownWords: an error about a word that nobody knows has the word, and those that may stand in its place: each of them is read.
func TestUnknownWords(t *testing.T) {
	const fleet = "client a legacy\nclient b bridge\n"
	for _, c := range []struct{ text, word, known string }{
		{"clinet a legacy", "clinet", "client"},
		{"client a legcy", "legcy", "legacy"},
		{"client a legacy leese=10s", "leese", "lease"},
		{"client a legacy dialect=jedisms", "jedisms", "jedis-ms"},
		{"client a legacy release=blnd", "blnd", "blind"},
		{"network 1ms lose-replies=1%", "lose-replies", "lose-reply"},
		{"server haead=1s", "haead", "ahead"},
		{fleet + "opening orders expired 5s ago in jedis", "jedis", "jedis-ms"},
		{fleet + "at 5s c pauses 1s", "c", "b"},
		{fleet + "at 5s a puases 1s", "puases", "pauses"},
		{fleet + "command 1 of a reply-lots", "reply-lots", "reply-lost"},
		{fleet + "command 1 of a replies", "replies", "reply"},
		{fleet + "expect overlap = 0", "overlap", "overlaps"},
	} {
		_, err := Parse(c.text)
		var line *Error
		require.ErrorAs(t, err, &line, c.text)
		require.Equal(t, c.word, line.Word, c.text)
		require.Contains(t, line.Known, c.known, c.text)
		for _, word := range line.Known { // the same line with a word of the list does not fail for its word
			before, after, _ := strings.Cut(c.text, c.word)
			if _, err := Parse(before + word + after); errors.As(err, &line) {
				require.NotEqual(t, word, line.Word, "instead of %q", c.word)
			}
		}
	}
	for text, want := range map[string]string{
		"client a bridge queue=no":         "line 1: the word alone turns it on: leave out =no",
		"client a legacy drift=much":       `line 1: "much" is no drift such as 200ppm`,
		"client a legacy dialect=T":        "cannot share a key with anybody",
		"client a legacy turns=few":        `line 1: "few" is no number`,
		fleet + "opening ordres 1":         `line 3: no client above locks "ordres"`,
		fleet + "opening guard:{orders} 1": `line 3: no client above locks "guard:{orders}"`,
		fleet + "expect overlaps = none":   `line 3: "none" is no count`,
		fleet + "expect overlaps equals 0": "line 3: write: expect WHAT = N (or <, >)",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, want, text)
		var line *Error
		require.ErrorAs(t, err, &line)
		require.Empty(t, line.Word, text)
	}
}

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
