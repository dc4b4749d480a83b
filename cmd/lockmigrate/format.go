package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/lockmigrate/lockmigrate/internal/simulate/forecast"
)

// thousands writes a count with commas: 1,234,567.
func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	return forecast.Number(float64(n))
}

// counted writes a count with its noun: "1 lock", "2,000 locks".
func counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

func perSecond(n int64, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64(float64(n) / d.Seconds())
}

// relative says when something is: "in 4m10s", "3h12m ago".
func relative(d time.Duration) string {
	if d < 0 {
		return short(-d) + " ago"
	}
	return "in " + short(d)
}

// short writes a duration in at most six columns, its two largest units.
func short(d time.Duration) string {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	case d < 100*day:
		return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
	case d < 2*year:
		return fmt.Sprintf("%dd", d/day)
	default:
		return fmt.Sprintf("%.1fy", float64(d)/float64(year))
	}
}

// countdown is the progress of what runs for a fixed time.
func countdown(what string, ran, all time.Duration) string {
	return fmt.Sprintf("%s %s %v left", what, bar(float64(ran)/float64(max(all, 1))), max(0, all-ran).Round(time.Second))
}

// timeLeft guesses how long the rest takes, once a twentieth is done.
func timeLeft(ran time.Duration, done, all int) string {
	if done == 0 || done*20 < all {
		return ""
	}
	return fmt.Sprintf(", about %s left", short(time.Duration(float64(ran)/float64(done)*float64(all-done))))
}

// unbroken is what wrap keeps whole: what stands between blanks, and a command in quotes.
var unbroken = regexp.MustCompile(`(?:"lockmigrate [^"]*"|[^ ])*`)

// wrap breaks a line between words where it is wider than width; what follows is indented. Libraries wrap without an indent. A line with a
// command in a column of its own stays whole: the terminal breaks it, and copies it whole.
func wrap(line string, width, indent int) string {
	if strings.HasPrefix(line, "lockmigrate ") || strings.Contains(line, "  lockmigrate ") || strings.Contains(line, "ACL SETUSER") {
		return line
	}
	var b strings.Builder
	column := 0
	for i, word := range unbroken.FindAllString(line, -1) {
		length := text.StringWidthWithoutEscSequences(word)
		switch {
		case i == 0:
		case column+1+length > width && column > indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += length
	}
	return b.String()
}
