package report

import (
	_ "embed"
	"fmt"

	"github.com/lockmigrate/lockmigrate/internal/simulate/scenario"
	"github.com/lockmigrate/lockmigrate/internal/simulate/sim"
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

func clobberRun(w *sim.World) Run {
	s := Clobber()
	records, _ := Trace(w, &s.Fleet, s.Seed)
	return Run{
		ID: "clobber", Fleet: &s.Fleet, Records: records, Scenario: clobber,
		Title:  fmt.Sprintf("legacy, clocks agree, nobody overruns: a clobber shortens the lease (%d clients)", len(s.Fleet.Clients)),
		Replay: "lockmigrate simulate --scheme clobber --as story",
	}
}
