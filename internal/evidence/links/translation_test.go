package links

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var restamp = flag.Bool("restamp", false, "note in the translations that each section is that of the English text as it is now")

// translations are the Chinese pages and what they translate.
var translations = map[string]string{
	"README.zh-CN.md":       "README.md",
	"docs/runbook.zh-CN.md": "docs/runbook.md",
	"docs/what-if.zh-CN.md": "docs/what-if.md",
}

var (
	stamp    = regexp.MustCompile(`(?m)^<!-- en:([0-9a-f]{8}) -->\n`)
	codeLine = regexp.MustCompile("(?m)^(    |```|\t).*$")
	quoted   = regexp.MustCompile(`(?m)^> .*\n`)
	target   = regexp.MustCompile(`\]\(([^)]*)\)`)
)

// TestTranslationsAreInStep compares each section of a translation with the English one: its level, its code, byte by byte, its tables' shape,
// what it names in code and links, and the hash of the English text that it was made from. It lists every section that is out of step. After these
// are translated, -restamp notes it. A quoted paragraph of a translation is its own.
func TestTranslationsAreInStep(t *testing.T) {
	for translation, original := range translations {
		text := read(t, translation)
		ours, theirs := sections(text), sections(read(t, original))
		if !assert.Equal(t, len(theirs), len(ours), "%s: sections; %s has others", translation, original) {
			continue
		}
		for i, english := range theirs {
			title, _, _ := strings.Cut(english, "\n")
			where := translation + ", of " + title
			chinese := stamp.ReplaceAllString(ours[i], "")
			note := quoted.ReplaceAllString(chinese, "")
			assert.Equal(t, level(english), level(note), "%s: the heading's level", where)
			assert.Equal(t, codeOf(english), codeOf(note), "%s: its code", where)
			assert.Equal(t, tables(english), tables(note), "%s: rows and columns of its tables", where)
			assert.Equal(t, spans(english), spans(note), "%s: what stands in backquotes", where)
			assert.Equal(t, targets(english), targets(note), "%s: its links", where)
			sum := fmt.Sprintf("%x", sha256.Sum256([]byte(english)))[:8]
			if *restamp {
				head, body, _ := strings.Cut(chinese, "\n")
				ours[i] = head + "\n<!-- en:" + sum + " -->\n" + body
				continue
			}
			noted := stamp.FindStringSubmatch(ours[i])
			if assert.NotNil(t, noted, "%s: no stamp", where) {
				assert.Equal(t, sum, noted[1], "%s: the English text has changed since it was translated", where)
			}
		}
		if *restamp {
			require.NoError(t, os.WriteFile(filepath.Join(root, translation), []byte(strings.Join(ours, "")), 0o644))
		}
	}
}

// sections splits a document before each heading that is not in a code block.
func sections(text string) (all []string) {
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if len(all) == 0 || !fenced && strings.HasPrefix(line, "#") {
			all = append(all, "")
		}
		all[len(all)-1] += line
	}
	return all
}

func level(section string) int { return len(section) - len(strings.TrimLeft(section, "#")) }

// codeOf is the code of a section, with fenced blocks as they are and the lines of indented ones.
func codeOf(section string) string {
	fenced := strings.Join(blocks.FindAllString(section, -1), "\n")
	return fenced + strings.Join(codeLine.FindAllString(blocks.ReplaceAllString(section, ""), -1), "\n")
}

// tables is the number of cells of each row.
func tables(section string) (cells []int) {
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "|") {
			cells = append(cells, strings.Count(verbatim.ReplaceAllString(line, ""), "|"))
		}
	}
	return cells
}

// spans are the pieces of code in the prose, in the order of the alphabet: a translation may have another word order.
func spans(section string) []string {
	prose := blocks.ReplaceAllString(coded.ReplaceAllString(section, ""), "")
	return slices.Sorted(slices.Values(verbatim.FindAllString(prose, -1)))
}

// targets are the links, where one to a translated page may lead to the translation.
func targets(section string) (links []string) {
	for _, m := range target.FindAllStringSubmatch(section, -1) {
		page, _, _ := strings.Cut(strings.ReplaceAll(m[1], ".zh-CN.", "."), "#") // a heading's name is translated
		links = append(links, page)
	}
	slices.Sort(links)
	return links
}
