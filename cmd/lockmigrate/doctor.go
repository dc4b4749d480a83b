package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/doctor"
	"github.com/lockmigrate/lockmigrate/internal/terminal"
)

func newDoctorCommand(env *environment) *cobra.Command {
	var opts doctor.Options
	var all bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Examine one deployment before a migration",
		Long: `doctor asks whether locks can be kept on a server at all, and whether the tools will see
what they need: version, eviction, persistence, replication, rights, client tracking,
this host's clock against the server's, dialects that cannot share keys.

It only reads. What it could not look at is skipped, and says why. Exit code 3 when a
check fails, 0 otherwise.`,
		Example: `  lockmigrate doctor --redis redis://localhost:6379/0
  lockmigrate doctor --match 'lock:*' --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			end, stop, err := env.endpoint("")
			if err != nil {
				return err
			}
			defer stop()
			opts.Now = env.now
			checks, err := doctor.Examine(cmd.Context(), end, opts)
			if err != nil && len(checks) == 0 {
				return err
			}
			if printErr := printChecks(env, checks, all); printErr != nil {
				return printErr
			}
			if err != nil {
				return err
			}
			if n := countOf(checks, doctor.Fail); n > 0 {
				return unsafeError("mend them before a stage is advanced", "%d checks fail", n)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&opts.Match, "match", "", "glob `PATTERN` of the lock keys: rights are tried on it, and only such keys are looked at")
	cmd.Flags().IntVar(&opts.Keys, "keys", 100_000, "look at no more than about `N` keys")
	cmd.Flags().BoolVar(&all, "all", false, "explain also the checks that pass")
	return cmd
}

func countOf(checks []doctor.Check, v doctor.Verdict) int {
	n := 0
	for _, c := range checks {
		if c.Verdict == v {
			n++
		}
	}
	return n
}

func printChecks(env *environment, checks []doctor.Check, all bool) error {
	if env.global.json {
		out := json.NewEncoder(env.stdout)
		out.SetIndent("", "  ")
		return out.Encode(map[string]any{"checks": checks})
	}
	var b strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&b, "%-4s  %-18s %s", c.Verdict, c.ID, terminal.Safe(c.Found))
		if c.Server != "" {
			fmt.Fprintf(&b, "  (%s)", c.Server)
		}
		b.WriteByte('\n')
		if c.Verdict == doctor.Pass && !all {
			continue
		}
		fmt.Fprintf(&b, "      why: %s\n", c.Why)
		if c.Hint != "" {
			fmt.Fprintf(&b, "      do:  %s\n", terminal.Safe(c.Hint))
		}
	}
	fmt.Fprintf(&b, "\n%d checks: %d pass, %d warn, %d fail, %d skipped\n", len(checks),
		countOf(checks, doctor.Pass), countOf(checks, doctor.Warn), countOf(checks, doctor.Fail), countOf(checks, doctor.Skip))
	_, err := io.WriteString(env.stdout, b.String())
	return err
}
