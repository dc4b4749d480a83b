package terminal

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/text"
)

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
