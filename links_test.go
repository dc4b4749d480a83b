package lockmigrate_test

// The tests of this file and its neighbours keep the documents true: what they point at exists, and ARCHITECTURE.md has a row for every package.

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link  = regexp.MustCompile(`\[((?:(?:,\s+)?(?:Test|Fuzz)[A-Za-z0-9_]+)+)(?:: ([^\]]+))?\]\(([^)]+_test\.go)\)`)
	comma = regexp.MustCompile(`,\s+`)
	faint = regexp.MustCompile(`(?m)^\| .*\|$`)
)

// TestLinksToTestsLeadToThem: the file has each test that the link names, and the case.
func TestLinksToTestsLeadToThem(t *testing.T) {
	for _, document := range tracked(t, "*.md") {
		text := read(t, document)
		found := link.FindAllStringSubmatch(text, -1)
		for _, m := range found {
			source, err := os.ReadFile(filepath.Join(filepath.Dir(document), m[3]))
			if !assert.NoError(t, err, m[0]) {
				continue
			}
			for _, name := range comma.Split(m[1], -1) {
				assert.True(t, strings.Contains(string(source), "func "+name+"("), "%s: %s: there is no %s", document, m[0], name)
			}
			if m[2] != "" { // a case of it, by name
				assert.True(t, strings.Contains(string(source), m[2]), "%s: %s: it has no such case", document, m[0])
			}
		}
		if document == "docs/guarantees.md" || document == "SECURITY.md" {
			assert.Greater(t, len(found), 10, document)
		}
		if document == "docs/guarantees.md" {
			for _, line := range faint.FindAllString(text, -1) {
				assert.False(t, !strings.HasPrefix(line, "|--") && strings.Contains(line, "_test.go") == strings.HasPrefix(line, "| fault |") && !strings.HasPrefix(line, "| client |"), "a line without a test: %s", line)
			}
		}
	}
}

// testName is a test as a package documentation names it: TestX, or TestX in internal/y.
var testName = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9_]+`)

// TestPackageDocumentationNamesTestsThatExist is about the guarantees of the public packages.
func TestPackageDocumentationNamesTestsThatExist(t *testing.T) {
	exists := map[string]bool{}
	for _, folder := range packagesOf(t) {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			for line := range strings.Lines(read(t, file)) {
				if name, found := strings.CutPrefix(line, "func "); found {
					exists[testName.FindString(name)] = true
				}
			}
		}
	}
	for _, document := range []string{"legacy/doc.go", "modern/doc.go", "compat/doc.go", "handover/doc.go"} {
		names := testName.FindAllString(read(t, document), -1)
		assert.Greater(t, len(names), 5, document)
		for _, name := range names {
			assert.True(t, exists[name], "%s names %s, which does not exist", document, name)
		}
	}
}

var (
	pageLink = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinksBetweenDocumentsLead wants a file behind each relative link, and a heading behind each anchor.
func TestLinksBetweenDocumentsLead(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	top, err := filepath.Glob("*.md")
	require.NoError(t, err)
	documents = append(documents, top...)
	assert.Greater(t, len(documents), 10)
	for _, document := range documents {
		for _, m := range pageLink.FindAllStringSubmatch(read(t, document), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := document
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(document), m[1])
			}
			there, err := os.Stat(target)
			if !assert.NoError(t, err, "%s: %s", document, m[0]) || m[2] == "" || there.IsDir() {
				continue
			}
			anchors := map[string]bool{}
			for _, h := range heading.FindAllStringSubmatch(read(t, target), -1) {
				anchors[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
			}
			assert.True(t, anchors[m[2]], "%s: no heading behind %s", document, m[0])
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// tracked lists the files that git knows.
func tracked(t *testing.T, pattern string) []string {
	t.Helper()
	output, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", pattern).Output()
	require.NoError(t, err)
	files := strings.Fields(string(output))
	require.NotEmpty(t, files)
	return files
}

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
			for line := range strings.Lines(read(t, filepath.Join(words[1], file))) {
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
	text := read(t, "README.md")
	require.Regexp(t, sizeSection, text)
	rows := "| a service imports | packages compiled in | lines of this project | other modules |\n|---|---|---|---|\n"
	said := map[string][]string{}
	for _, m := range sizeRow.FindAllStringSubmatch(text, -1) {
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
		require.NoError(t, os.WriteFile("README.md", []byte(sizeSection.ReplaceAllString(text, "${1}"+rows+"${2}")), 0o644))
	}
}
