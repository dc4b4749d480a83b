package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
)

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
			fmt.Fprintf(b, "clock of %s: %+.0f ms, and %+.1f ms more each day, give or take %.1f\n", quoted(c.Name), c.SkewMS, 86.4*ppm, 86.4*off)
		}
	}
}
