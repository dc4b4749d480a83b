package report

import (
	_ "embed"

	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
)

//go:embed clobber.txt
var clobber string

// Clobber is the break of the old scheme that needs no skew at all: of two clients whose clocks agree and whose work never outlasts its
// lease, one overwrites the value of the other.
func Clobber() *scenario.Scenario {
	s, err := scenario.Parse(clobber)
	if err != nil {
		panic(err) // the file is part of the program
	}
	return s
}
