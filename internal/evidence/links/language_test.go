package links

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The language of this project is plain English: one idea a sentence, the field's words. The tests here read every text that a user reads:
// documents, package documentation, help and messages. They are some lines of Go and not a linter such as
// vale, because half of these texts stand in Go strings, which a linter of prose does not find.

// longest is the most words that a sentence may have. A colon or a semicolon ends one, as it ends an idea.
const longest = 20

// hard are turns of phrase that are hard for readers with another first language, and private words for what has a name.
var hard = regexp.MustCompile(`(?i)\b(of (which|whose|whom)|whom|is had by|had by|be told from|all the same|anew|whoever|as much as|as it were|thereof|hence|hitherto|` +
	`stir|turnstile|streak|courtesy|last words|critical section helper|in lieu of|notwithstanding)\b`)

// asks is a sentence with Who as its subject that is no question.
var asks = regexp.MustCompile(`^Who [^?]*[^?]$`)

func TestDocumentsAreInPlainEnglish(t *testing.T) {
	for _, file := range tracked(t, "*.md") {
		if strings.HasSuffix(file, ".zh-CN.md") || strings.Contains(file, "testdata/") || strings.HasPrefix(file, "bench/") {
			continue
		}
		for _, sentence := range sentences(plain(read(t, file))) {
			judge(t, file, sentence)
		}
	}
}

// TestPackageDocumentationIsInPlainEnglish reads what `go doc -all` prints of the packages that people import, without the tables of rights.
func TestPackageDocumentationIsInPlainEnglish(t *testing.T) {
	for _, file := range tracked(t, "*.go") {
		folder, _, _ := strings.Cut(file, "/")
		if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "rights.go") || slices.Contains([]string{"internal", "cmd", "bench", "testdata"}, folder) {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments)
		require.NoError(t, err)
		ast.FileExports(tree) // takes away what is not exported
		ast.Inspect(tree, func(node ast.Node) bool {
			if group, ok := node.(*ast.CommentGroup); ok {
				for _, sentence := range sentences(evidence.ReplaceAllString(tabbed.ReplaceAllString(group.Text(), "\n"), "")) {
					judge(t, file, sentence)
				}
			}
			_, inside := node.(*ast.BlockStmt)
			return !inside
		})
	}
}

// TestTheCoresCommentsAreInPlainEnglish reads the comments of the step machines and of the server scripts: to change the protocol is to read them.
func TestTheCoresCommentsAreInPlainEnglish(t *testing.T) {
	for _, file := range tracked(t, "internal/protocol/*.go") {
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments)
		require.NoError(t, err)
		for _, group := range tree.Comments {
			for _, sentence := range sentences(tabbed.ReplaceAllString(group.Text(), "\n")) {
				judge(t, file, sentence)
			}
		}
	}
	for _, file := range tracked(t, "*.lua") {
		var prose strings.Builder
		for line := range strings.Lines(read(t, file)) {
			code, comment, _ := strings.Cut(line, "--")
			if strings.TrimSpace(code) != "" {
				comment = "\n" + comment + "\n" // a comment behind code stands alone
			}
			prose.WriteString(row.ReplaceAllString(comment, "\n"))
		}
		for _, sentence := range sentences(prose.String()) {
			judge(t, file, sentence)
		}
	}
}

// TestMessagesAreInPlainEnglish reads the strings of the code: help, errors, warnings, the page and the report.
func TestMessagesAreInPlainEnglish(t *testing.T) {
	const help = "cmd/lockmigrate/help.txt"
	for _, sentence := range sentences(indented.ReplaceAllString(read(t, help), "\n")) {
		judge(t, help, sentence)
	}
	for _, file := range tracked(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/evidence") || strings.HasPrefix(file, "bench") || strings.Contains(file, "testdata") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		require.NoError(t, err)
		ast.Inspect(tree, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				require.NoError(t, err)
				if !strings.ContainsAny(text, "<{") && strings.ToUpper(text) != text { // else a page's source, or a list of commands
					for _, sentence := range sentences(indented.ReplaceAllString(text, "\n")) {
						judge(t, file, sentence)
					}
				}
			}
			return true
		})
	}
}

var (
	root     = filepath.Join("..", "..", "..")
	indented = regexp.MustCompile(`(?m)^(\t|  |== ).*$`) // an example in a help text, or its heading
	tabbed   = regexp.MustCompile(`(?m)^\t.*$`)          // code in a comment
	coded    = regexp.MustCompile(`(?m)^(\t|    ).*$`)   // code in a document
	named    = regexp.MustCompile(`\w+(-\w+){3,}`)       // a name with hyphens
	blocks   = regexp.MustCompile("(?s)```.*?```|<!--.*?-->")
	links    = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	evidence = regexp.MustCompile(`\(((code|(Test|Benchmark)\w+)(( and|[,;])\s)?)+(in\s[a-z/.]+|and following)?\)`)
	verbatim = regexp.MustCompile("`[^`]*`")
	row      = regexp.MustCompile(`^( (KEYS|ARGV|WORD|Reply|include) |  +).*\n`) // a row of the table in a script's header
	item     = regexp.MustCompile(`^\s*(#+|[-*]|\d+\.) `)
	ends     = regexp.MustCompile(`[.!?:;]["')*_]*(\s+|$)`)
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	return string(text)
}

// tracked lists the files that git knows.
func tracked(t *testing.T, pattern string) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", pattern)
	command.Dir = root
	output, err := command.Output()
	require.NoError(t, err)
	files := strings.Fields(string(output))
	require.NotEmpty(t, files)
	return files
}

// plain is the prose of a Markdown document: no code; each cell of a table is a paragraph.
func plain(text string) string {
	text = coded.ReplaceAllString(blocks.ReplaceAllString(text, ""), "")
	text = verbatim.ReplaceAllString(links.ReplaceAllString(text, "$1"), "code")
	text = evidence.ReplaceAllString(text, "") // what is only named in brackets is not part of the sentence
	return strings.ReplaceAll(named.ReplaceAllString(text, "code"), "|", "\n\n")
}

// sentences splits prose: at an empty line, before an item of a list, and behind each mark that ends an idea.
func sentences(text string) (all []string) {
	var paragraph []string
	flush := func() {
		joined := strings.Join(paragraph, " ")
		for joined != "" {
			end := ends.FindStringIndex(joined)
			if end == nil {
				end = []int{len(joined), len(joined)}
			}
			all = append(all, strings.TrimSpace(joined[:end[1]]))
			joined = joined[end[1]:]
		}
		paragraph = nil
	}
	for line := range strings.Lines(text) {
		if item.MatchString(line) || strings.TrimSpace(line) == "" {
			flush()
		}
		if line = strings.TrimSpace(item.ReplaceAllString(line, "")); line != "" {
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

func judge(t *testing.T, file, sentence string) {
	t.Helper()
	words := 0
	for _, word := range strings.Fields(sentence) {
		if strings.IndexFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) >= 0 {
			words++
		}
	}
	assert.LessOrEqual(t, words, longest, "%s: a sentence of %d words; make two of it: %s", file, words, sentence)
	assert.Empty(t, hard.FindAllString(sentence, -1), "%s: say it plainly: %s", file, sentence)
	assert.False(t, asks.MatchString(sentence), "%s: Who as a subject: %s", file, sentence)
}
