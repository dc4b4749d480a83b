package scenario

import _ "embed"

//go:embed clobber.txt
var clobber string

// Clobber is the break of the old scheme that needs no skew at all: of two clients whose clocks agree and whose work never outlasts its
// lease, one overwrites the value of the other.
func Clobber() *Scenario {
	s, err := Parse(clobber)
	if err != nil {
		panic(err) // the file is part of the program
	}
	return s
}
