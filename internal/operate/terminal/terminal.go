// Package terminal is what the command line knows about the screen: whether there is one, how wide it
// is, what may be written to it, and a status line that results do not run into.
package terminal

import (
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
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && size <= 1 {
			b.WriteString(`\x` + strconv.FormatUint(uint64(text[i])>>4, 16) + strconv.FormatUint(uint64(text[i])&15, 16))
			i++
			continue
		}
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
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

func printable(text string) bool {
	ascii := true
	for i := 0; i < len(text); i++ {
		if text[i] < 0x20 || text[i] == 0x7f {
			return false
		}
		ascii = ascii && text[i] < 0x80
	}
	if ascii {
		return true
	}
	if !utf8.ValidString(text) {
		return false
	}
	for _, r := range text {
		if !unicode.IsPrint(r) { // C1 controls, bidirectional overrides, zero-width characters
			return false
		}
	}
	return true
}
