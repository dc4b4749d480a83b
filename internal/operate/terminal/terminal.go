// Package terminal is what the command line knows about the screen: whether there is one, how wide it
// is, what may be written to it, and a status line that results do not run into.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// defaultWidth is assumed where a terminal does not tell.
const defaultWidth = 80

// Is tells whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the columns of the terminal behind w, 80 where there is none.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return defaultWidth
}

// Safe makes text of any bytes harmless on a terminal: what is not printable is written as an escape.
// Text that is printable throughout comes back as it is.
func Safe(text string) string {
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
		default:
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// Quoted writes text as it is where it is one printable word, and as a quoted string otherwise, so that
// columns and eyes cannot be led astray.
func Quoted(text string) string {
	if text == "" || !printable(text) || strings.ContainsAny(text, " \"\\") {
		return strconv.Quote(text)
	}
	return text
}

// printable tells that text has no control, no bidirectional override, no character without a width.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// JSON escapes what is not printable in a JSON text, from control characters to bidirectional overrides; encoding/json leaves some of them.
func JSON(text []byte) []byte {
	if printable(strings.ReplaceAll(string(text), "\n", "")) {
		return text
	}
	var out []byte
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// Ink colours words. Its zero value leaves them as they are.
type Ink bool

func (i Ink) paint(words string, c ...text.Color) string {
	if !i || words == "" {
		return words
	}
	return text.Escape(words, text.Colors(c).EscapeSeq())
}

// Good is what is as it should be: green.
func (i Ink) Good(words string) string { return i.paint(words, text.FgGreen) }

// Warn is what wants a look: yellow.
func (i Ink) Warn(words string) string { return i.paint(words, text.FgYellow) }

// Bad is what is broken or refused: bold red.
func (i Ink) Bad(words string) string { return i.paint(words, text.Bold, text.FgRed) }

// Verdict colours a word: one of two as good or bad, every other as what wants a look.
func (i Ink) Verdict(word, good, bad string) string {
	switch word {
	case good:
		return i.Good(word)
	case bad:
		return i.Bad(word)
	}
	return i.Warn(word)
}

// Count colours the number of what must not happen.
func (i Ink) Count(n int64) string {
	if n == 0 {
		return i.Good("0")
	}
	return i.Bad(fmt.Sprint(n))
}

// Dim is what most readers skip.
func (i Ink) Dim(words string) string { return i.paint(words, text.Faint) }

// Head is a heading: bold.
func (i Ink) Head(words string) string { return i.paint(words, text.Bold) }
