package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/observe"
	"github.com/lockmigrate/lockmigrate/internal/operate/profile"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// nextStep is what to run after an observation, and why. File is the profile that was written; empty for none.
type nextStep struct {
	Command string `json:"command"`
	Why     string `json:"why"`
}

// afterObserve says what to run after an observation. It is a whole command line, but for what nothing measured tells.
func afterObserve(p profile.Profile, file string) nextStep {
	for _, c := range p.Clients {
		if c.Kind == observe.Bridge {
			return nextStep{"lockmigrate next --namespace " + cmp.Or(fileNamespace(file), "NAME"), `members of a namespace lock here: "lockmigrate stage list" has its name`}
		}
	}
	patterns := stages.UnescapeAll(p.Match)
	if len(patterns) == 0 {
		patterns = []string{"PATTERN"}
	}
	old, err := p.OldClients()
	switch {
	case err == nil && file != "":
		match := ""
		if len(p.Match) == 0 {
			match = matchFlags(patterns)
		}
		name := cmp.Or(fileNamespace(file), "NAME")
		why := old.Why[0] + "; it prints its plan, and writes with --execute"
		return nextStep{fmt.Sprintf("lockmigrate stage init --namespace %s%s --profile %s", name, match, terminal.Quoted(file)), why}
	case err == nil:
		return nextStep{fmt.Sprintf("lockmigrate observe%s --for 10m --profile fleet.json", matchFlags(patterns)), "a profile carries the figures to stage init, simulate and forecast"}
	}
	longer := max(10*time.Minute, time.Duration(3*p.Seconds())*time.Second).Round(time.Minute)
	length := strings.TrimSuffix(longer.String(), "0s")
	if longer > 24*time.Hour {
		length = "24h"
	}
	lease := ""
	if p.Guessed() { // to look for longer would not tell it
		lease = " --lease LEASE"
	}
	return nextStep{fmt.Sprintf("lockmigrate observe%s%s --for %s --profile %s", matchFlags(patterns), lease, length, terminal.Quoted(cmp.Or(file, "fleet.json"))), err.Error()}
}

// fileNamespace is the namespace that a profile's file is named after, as "next" names it; empty for another name.
func fileNamespace(file string) string {
	name, found := strings.CutSuffix(filepath.Base(file), profileName(""))
	if !found || stages.CheckName(name) != nil {
		return ""
	}
	return name
}

// print adds the step to a report.
func (n nextStep) print(b *strings.Builder) {
	fmt.Fprintf(b, "next: %s\n      %s\n", n.Command, terminal.Safe(n.Why))
}

// oneProfile wants a profile's file, and nothing else.
func oneProfile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError("make one with: lockmigrate observe --profile FILE", "%s wants one PROFILE, not %d", cmd.Name(), len(args))
	}
	return nil
}

// openProfile reads a profile from a file.
func openProfile(path string) (profile.Profile, error) {
	return readFile(path, `"lockmigrate observe --profile FILE" writes one`, profile.Read)
}

// readFile reads a file that another command wrote.
func readFile[T any](path, how string, read func(io.Reader) (T, error)) (doc T, err error) {
	file, err := os.Open(path)
	if err != nil {
		return doc, usageError(how, "%w", err)
	}
	defer file.Close()
	if doc, err = read(file); err != nil {
		err = usageError(how, "%s: %w", path, err)
	}
	return doc, err
}

// mostDrifts is how many clocks the text names.
const mostDrifts = 20

// drifts tells how fast each clock runs, where that is known well enough to say that it does.
func drifts(b *strings.Builder, p profile.Profile) {
	shown := 0
	for _, c := range p.Clients {
		if ppm, off, known := c.Drift(); known && max(ppm, -ppm) > off && shown < mostDrifts {
			shown++
			fmt.Fprintf(b, "clock of %s: %+.0f ms, and %+.1f ms more each day, give or take %.1f\n", terminal.Quoted(c.Name), c.SkewMS, 86.4*ppm, 86.4*off)
		}
	}
}
