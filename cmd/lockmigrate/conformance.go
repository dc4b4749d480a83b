package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/conformance"
)

func newConformanceCommand(env *environment) *cobra.Command {
	var o conformance.Options
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- CMD [ARG...]",
		Short: "Try an implementation of the protocol in another language",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() != 0 {
				return usageError("lockmigrate conformance -- node driver.js", "conformance wants the command of a driver, after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Command, o.Server = args, "redis-server"
			env.grace.Store(int64(conformance.CleansWithin))
			status := env.status()
			defer status.Clear()
			o.Began = func(done, all int) {
				status.Update("conformance: %d of %d cases", done, all)
			}
			r, err := conformance.Run(cmd.Context(), o)
			status.Clear()
			switch {
			case errors.Is(err, conformance.ErrNoCase):
				return usageError("docs/conformance.md lists them", "%w", err)
			case errors.Is(err, conformance.ErrNoServer):
				return failedError("install Redis or Valkey: a redis-server has to be on the PATH", "%w", err)
			case err != nil:
				return failedError("docs/conformance.md says what a driver does", "%w", err)
			}
			if err := env.print(r, func(b *strings.Builder) { conformanceText(b, env, r) }); err != nil {
				return err
			}
			return conformanceVerdict(r)
		},
	}
	cmd.Flags().StringSliceVar(&o.Cases, "case", nil, "try this case only, or those of a level, 1 to 4; may be given more than once")
	return cmd
}

// conformanceVerdict is the exit code: a failure counts more than what was not tried.
func conformanceVerdict(r *conformance.Report) error {
	counts := map[string]int64{}
	for _, c := range r.Cases {
		counts[c.Result]++
	}
	switch failed, open := counts[conformance.Fail], counts[conformance.NotTried]; {
	case failed > 0:
		return unsafeError("do not use this implementation beside others", "%s failed", counted(failed, "case"))
	case open > 0:
		return inconclusiveError("the report says what is missing", "%s not tried", counted(open, "case"))
	case r.Passed() == 0:
		return inconclusiveError("the driver's hello says which levels it claims", "no case was tried")
	}
	return nil
}

func conformanceText(b *strings.Builder, env *environment, r *conformance.Report) {
	h := r.Implementation
	fmt.Fprintf(b, "%s %s (%s) on %s\n\n", safe(h.Name), safe(h.Version), safe(h.Language), r.Server)
	t := newTable("LEVEL|right", "RESULT", "PASSED|right")
	for _, l := range r.Levels {
		t.Row(fmt.Sprint(l.Level), l.Result, fmt.Sprintf("%d of %d", l.Passed, l.Cases))
	}
	b.WriteString(t.Render(env.screen(), env.ink()))
	for _, c := range r.Cases {
		switch {
		case c.Result == conformance.Pass || r.Levels[c.Level-1].Result == conformance.NotClaimed:
			continue
		case c.Result == conformance.Fail:
			fmt.Fprintf(b, "\nlevel %d, %s: %s\n  claim:    %s\n  step:     %s\n  expected: %s\n  seen:     %s\n", c.Level, c.ID, env.ink().Bad("fail"), c.Claim, c.Step, c.Expected, safe(c.Seen))
			for line := range strings.Lines(c.Stderr) {
				fmt.Fprintf(b, "  stderr:   %s\n", safe(strings.TrimSuffix(line, "\n")))
			}
		default:
			fmt.Fprintf(b, "\nlevel %d, %s: %s: %s\n", c.Level, c.ID, c.Result, safe(c.Seen))
		}
	}
}
