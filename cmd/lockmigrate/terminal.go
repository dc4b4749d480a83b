package main

// What the command line knows about the screen: whether there is one, how wide it is, what may be written to it, and a status line that
// results do not run into.

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// defaultWidth is assumed where a terminal does not tell.
const defaultWidth = 80

// isTerminal tells whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// widthOf returns the columns of the terminal behind w, 80 where there is none.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return defaultWidth
}

// safe makes text of any bytes harmless on a terminal, and where JSON is read: what is not printable is written as an escape.
// Text that is printable throughout comes back as it is.
func safe(text string) string {
	if printable(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)): // a byte that is no UTF-8
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < ' ':
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	return b.String()
}

// quoted writes text as it is where it is one printable word, and as a quoted string otherwise, so that
// columns and eyes cannot be led astray.
func quoted(text string) string {
	if text == "" || !printable(text) || strings.ContainsAny(text, " \"\\") {
		return strconv.Quote(text)
	}
	return text
}

// printable tells that text has no control, no bidirectional override, no character without a width.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// printableJSON escapes what is not printable in a JSON text, such as bidirectional overrides: encoding/json escapes control characters alone.
func printableJSON(text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = safe(line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// palette colours words. Its zero value leaves them as they are.
type palette bool

func (i palette) paint(words string, c ...text.Color) string {
	if !i || words == "" {
		return words
	}
	return text.Escape(words, text.Colors(c).EscapeSeq())
}

// Good is what is as it should be: green.
func (i palette) Good(words string) string { return i.paint(words, text.FgGreen) }

// Warn is what wants a look: yellow.
func (i palette) Warn(words string) string { return i.paint(words, text.FgYellow) }

// Bad is what is broken or refused: bold red.
func (i palette) Bad(words string) string { return i.paint(words, text.Bold, text.FgRed) }

// Verdict colours a word: one of two as good or bad, every other as what wants a look.
func (i palette) Verdict(word, good, bad string) string {
	switch word {
	case good:
		return i.Good(word)
	case bad:
		return i.Bad(word)
	}
	return i.Warn(word)
}

// Count colours the number of what must not happen.
func (i palette) Count(n int64) string {
	if n == 0 {
		return i.Good("0")
	}
	return i.Bad(thousands(n))
}

// Dim is what most readers skip.
func (i palette) Dim(words string) string { return i.paint(words, text.Faint) }

// Head is a heading: bold.
func (i palette) Head(words string) string { return i.paint(words, text.Bold) }

// statusLine is one line of progress on a terminal, rewritten in place. It is silent where there is no terminal.
// It is safe for concurrent use; what else writes to the same screen calls Clear before.
type statusLine struct {
	w     io.Writer
	width func() int

	mu    sync.Mutex
	last  time.Time
	shown bool
}

// everyStatus is how often the line changes: often enough to look alive.
const everyStatus = 100 * time.Millisecond

// newStatusLine returns a status line on w; width is asked for each line. A nil w makes it silent.
func newStatusLine(w io.Writer, width func() int) *statusLine { return &statusLine{w: w, width: width} }

// Update shows a new line, unless the last one is younger than a tenth of a second. The text is made only if
// it will be shown.
func (s *statusLine) Update(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil || time.Since(s.last) < everyStatus {
		return
	}
	s.last, s.shown = time.Now(), true
	fmt.Fprintf(s.w, "\r%s\x1b[K", cut(fmt.Sprintf(format, args...), s.width()-1))
}

// Clear removes the line; the next Update brings it back.
func (s *statusLine) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil || !s.shown {
		return
	}
	s.shown, s.last = false, time.Time{}
	fmt.Fprint(s.w, "\r\x1b[K")
}

// cut shortens text to a number of columns, with an ellipsis for what is missing. Escape sequences take no column,
// and East Asian characters take two.
func cut(line string, columns int) string { return text.Snip(line, columns, "…") }

// bar draws the share that is done, 0 to 1, in twenty columns.
func bar(done float64) string {
	const columns = 20
	full := int(min(max(done, 0), 1) * columns)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", columns-full) + "]"
}
