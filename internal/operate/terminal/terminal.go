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
	"unicode/utf8"

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
