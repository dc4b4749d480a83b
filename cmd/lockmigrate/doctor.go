package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/doctor"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
)

func newDoctorCommand(env *environment) *cobra.Command {
	var opts doctor.Options
	var all bool
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Examine one deployment before a migration",
		PreRunE: func(*cobra.Command, []string) error {
			for _, name := range opts.Uses {
				if _, ok := doctor.FindUse(name); !ok {
					return usageError(oneOf(useNames()), "--use cannot be %q", name)
				}
			}
			return nil
		},
		RunE: env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error {
			opts.Now = env.now
			status, began := env.status(), time.Now()
			opts.Progress = func(server, check string, done, all int) {
				status.Update("doctor: %s, %s, %d of %d checks%s", server, check, done, all, timeLeft(time.Since(began), done, all))
			}
			found, err := doctor.Examine(ctx, end, opts)
			status.Clear()
			if err != nil && len(found) == 0 {
				return err
			}
			if err := cmp.Or(printChecks(env, found, all), err); err != nil {
				return err
			}
			if n := len(found.Of(doctor.Fail)); n > 0 {
				return unsafeError("mend them before a stage is advanced", "%s", map[bool]string{true: "1 check fails", false: fmt.Sprintf("%d checks fail", n)}[n == 1])
			}
			if outcome, _ := doctor.Judge(found); outcome == doctor.Inconclusive {
				return inconclusiveError("grant this user the rights to look, or run doctor as one that has them", "no check fails, but not all that a yes needs could be made")
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&opts.Match, "match", "", "glob `PATTERN` of the lock keys: rights are tried on it, and only such keys are looked at")
	cmd.Flags().StringArrayVar(&opts.Uses, "use", nil, "`NAME` of a package and feature whose rights are tried, such as modern or 'compat bridge'; repeatable (default: the way from legacy to modern)")
	completes(cmd, "use", useNames)
	cmd.Flags().StringVar(&opts.User, "user", "", "`NAME` of the user whose rights are tried (default: the one of this connection)")
	cmd.Flags().BoolVar(&all, "all", false, "show also the checks that pass, with what was found and why it matters")
	return cmd
}

func useNames() []string {
	var names []string
	for _, u := range doctor.Uses() {
		names = append(names, u.Name)
	}
	return names
}

func printChecks(env *environment, found doctor.Findings, all bool) error {
	outcome, obligations := doctor.Judge(found)
	doc := map[string]any{"checks": found, "verdict": outcome, "obligations": obligations}
	return env.print(pretty{doc}, func(b *strings.Builder) {
		ink := env.ink()
		names := 0
		for _, c := range found {
			if !strings.HasPrefix(c.ID, "rights-") { // these are long: they keep the rest narrow and reach over
				names = max(names, len(c.ID))
			}
		}
		var passed []string
		for _, c := range found {
			if c.Verdict == doctor.Pass && !all {
				if !slices.Contains(passed, c.ID) {
					passed = append(passed, c.ID)
				}
				continue
			}
			fmt.Fprintf(b, "%s  %-*s  %s", ink.Verdict(string(c.Verdict), string(doctor.Pass), string(doctor.Fail)), names, c.ID, safe(c.Found))
			if c.Server != "" {
				fmt.Fprintf(b, "  (%s)", c.Server)
			}
			b.WriteByte('\n')
			fmt.Fprintf(b, "      why:  %s\n", safe(c.Why))
			if c.Hint != "" {
				fmt.Fprintf(b, "      do:   %s\n", safe(c.Hint))
			}
		}
		if len(passed) > 0 {
			fmt.Fprintf(b, "%s  %s (--all shows what was found)\n", ink.Good("pass"), strings.Join(passed, ", "))
		}
		skipped := found.Of(doctor.Skip)
		fmt.Fprintf(b, "\n%d checks: %d pass, %d warn, %d fail, %d not looked at\n", len(found),
			len(found.Of(doctor.Pass)), len(found.Of(doctor.Warn)), len(found.Of(doctor.Fail)), len(skipped))
		if len(skipped) > 0 {
			fmt.Fprintf(b, "not looked at: %s\n", strings.Join(skipped, ", "))
		}
		fmt.Fprintf(b, "verdict: %s", ink.Verdict(string(outcome), string(doctor.Fit), string(doctor.Unfit)))
		if open := fence.Undischarged(obligations); len(open) > 0 {
			fmt.Fprintf(b, "; a yes needs: %s", strings.Join(open, ", "))
		}
		b.WriteByte('\n')
	})
}
