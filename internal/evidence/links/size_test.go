package links

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateSize = flag.Bool("update-size", false, "write README's table of sizes")

var (
	sizeSection = regexp.MustCompile(`(?s)(<!-- size: .*? -->\n\n).*?(\n<!-- end of size -->)`)
	sizeRow     = regexp.MustCompile("\\| `(\\w+)` \\| (\\d+) \\| ([\\d,]+) \\| (.*?) \\|")
)

// size is what a service compiles in that imports a package.
type size struct {
	packages, lines int
	modules         []string // other ones
}

func sizeOf(t *testing.T, name string) (s size) {
	t.Helper()
	for line := range strings.Lines(list(t, `{{if not .Standard}}{{.Module.Path}} {{.Dir}} {{join .GoFiles " "}}{{end}}`, "-deps", "./"+name)) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if s.packages++; words[0] != module {
			if !slices.Contains(s.modules, words[0]) {
				s.modules = append(s.modules, words[0])
			}
			continue
		}
		for _, file := range words[2:] {
			text, err := os.ReadFile(filepath.Join(words[1], file))
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
					s.lines++
				}
			}
		}
	}
	return s
}

// TestSizeOfAService: README says what a service takes on: to the package and the module, and the lines within a tenth.
func TestSizeOfAService(t *testing.T) {
	file := filepath.Join(root, "README.md")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Regexp(t, sizeSection, string(text))
	rows := "| a service imports | packages compiled in | lines of this project | other modules |\n|---|---|---|---|\n"
	said := map[string][]string{}
	for _, m := range sizeRow.FindAllStringSubmatch(string(text), -1) {
		said[m[1]] = m
	}
	for _, name := range []string{"legacy", "modern", "compat", "handover"} {
		s := sizeOf(t, name)
		lines := (s.lines + 50) / 100 * 100
		rows += fmt.Sprintf("| `%s` | %d | %d,%03d | %s |\n", name, s.packages, lines/1000, lines%1000, strings.TrimPrefix(strings.Join(s.modules, ", "), "github.com/"))
		if *updateSize {
			continue
		}
		row := said[name]
		require.NotNil(t, row, "no row of %s: run this test with -update-size", name)
		packages, _ := strconv.Atoi(row[2])
		before, _ := strconv.Atoi(strings.ReplaceAll(row[3], ",", ""))
		require.Equal(t, s.packages, packages, "%s: run this test with -update-size", name)
		require.InEpsilon(t, s.lines, before, 0.1, "%s: run this test with -update-size", name)
		require.Equal(t, []string{"github.com/" + row[4]}, s.modules, name)
	}
	if *updateSize {
		require.NoError(t, os.WriteFile(file, []byte(sizeSection.ReplaceAllString(string(text), "${1}"+rows+"${2}")), 0o644))
	}
}
