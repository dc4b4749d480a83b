package sim

import (
	"fmt"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/simulate/model"
)

// Scenario is a fleet with a seed and what is expected of its run.
type Scenario struct {
	Purpose []string // the comment at the top
	Fleet   Fleet
	Seed    uint64
	Seeds   int // how many seeds, from Seed on; expectations hold for their sum
	Expect  []Expectation

	names map[string]int // of the clients
}

// Expectation compares one count of a run.
type Expectation struct {
	What string // overlaps, acquisitions, those of a scheme: legacy-acquisitions, a hazard's name, or a pair of schemes: legacy+bridge
	Op   string // = < >
	N    int64
}

func (e Expectation) String() string { return fmt.Sprintf("%s %s %d", e.What, e.Op, e.N) }

// Met tells whether a tally is as expected, and what it is.
func (e Expectation) Met(t *Tally) (got int64, ok bool) {
	got, _ = Count(t, e.What)
	switch e.Op {
	case "<":
		return got, got < e.N
	case ">":
		return got, got > e.N
	default:
		return got, got == e.N
	}
}

// Count finds a count by its name.
func Count(t *Tally, what string) (int64, bool) {
	n, known := counts(t)[what]
	return n, known
}

// counts are what a tally has, by the names that an expectation may use. A pair of schemes is named in any order.
func counts(t *Tally) map[string]int64 {
	all := map[string]int64{"overlaps": t.Overlaps, "acquisitions": t.Acquisitions, "turns": t.Turns, "displaced": t.Displaced, "failovers": t.Failovers}
	for h, n := range t.Hazards {
		all[Hazard(h).String()] = n
	}
	for a, n := range t.Entered {
		all[model.Scheme(a).String()+"-acquisitions"] = n
		for b := range t.Entered {
			pair := model.Scheme(a).String() + "+" + model.Scheme(b).String()
			if all[pair] = t.Pairs[a][b]; a != b {
				all[pair] += t.Pairs[b][a]
			}
		}
	}
	return all
}

// fail reports a line that cannot be read.
func fail(line int, format string, args ...any) error {
	return &Error{Line: line, Text: fmt.Sprintf(format, args...)}
}

// unknown reports a word that is none of those that may stand there.
func unknown(line int, word string, known []string, format string, args ...any) error {
	return &Error{Line: line, Text: fmt.Sprintf(format, args...), Word: word, Known: known}
}

// Error is a line that cannot be read.
type Error struct {
	Line  int
	Text  string
	Word  string   // the word that nobody knows; empty if that is not what is wrong
	Known []string // the words that may stand in its place
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Usage says that the caller's input is at fault.
func (e *Error) Usage() bool { return true }

// mostWords is how many words a hint lists: all options of a client, but not all names of a large fleet.
const mostWords = 60

// Hint lists the words that may stand there, or says where the language is described.
func (e *Error) Hint() string {
	if e.Word != "" && len(e.Known) <= mostWords {
		return "known are " + strings.Join(e.Known, ", ")
	}
	return "docs/simulator.md describes the language"
}
