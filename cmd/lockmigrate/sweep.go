package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

func newSweepCommand(env *environment) *cobra.Command {
	var opts census.SweepOptions
	var journal string
	cmd := &cobra.Command{
		Use:     "sweep [flags]",
		Short:   "Clear ghosts and tokens without TTL, by compare-and-set",
		PreRunE: func(*cobra.Command, []string) error { return checkSweepOptions(opts) },
		RunE:    env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error { return runSweep(ctx, env, end, opts, journal) }),
	}
	f := cmd.Flags()
	f.StringArrayVar(&opts.Match, "match", nil, "glob `PATTERN` of the lock keys; repeatable; needed with --execute")
	f.DurationVar(&opts.GhostAfter, "ghost-after", 5*time.Minute, "an expiry that is over for longer than this `DURATION` is swept: more than any client's clock is behind")
	f.DurationVar(&opts.TTL, "ttl", 0, "give expiries this TTL instead of removing them; also the TTL of everything else (0: 1h)")
	f.BoolVar(&opts.Tokens, "tokens", false, "also tokens, bridge values and hashes without TTL: a holder that works for longer than the TTL loses its lock")
	executeFlag(f, &opts.Execute, "change keys")
	f.IntVar(&opts.Rate, "rate", 100, "most changes in a second (0: no limit)")
	f.StringVar(&journal, "journal", "lockmigrate-sweep.jsonl", "`FILE` that records every change; it is appended to")
	return cmd
}

func checkSweepOptions(o census.SweepOptions) error {
	switch {
	case o.Execute && len(o.Match) == 0:
		return usageError("say which keys are locks with --match PATTERN", "--execute without --match would judge keys by their form alone")
	case o.GhostAfter < time.Minute:
		return usageError("a legacy clock may be behind by that much; give at least 1m", "--ghost-after %v is too short", o.GhostAfter)
	case o.TTL > 0 && o.TTL < time.Second:
		return usageError("give at least 1s", "--ttl %v is too short", o.TTL)
	}
	return nil
}

func runSweep(ctx context.Context, env *environment, end *endpoint.Endpoint, opts census.SweepOptions, file string) error {
	if opts.Execute {
		kept, err := openJournal(file)
		if err != nil {
			return err
		}
		defer kept.Close()
		defer kept.Sync() // a crash of this host loses nothing after it
		opts.Journal = func(e census.SweepEntry) error { return encode(kept, e) }
		env.note("the journal is %s", quoted(file))
	}
	opts.Now = env.now
	status := env.status()
	opts.Emit = func(e census.SweepEntry) error {
		if env.isTerminal(env.stdout) {
			status.Clear()
		}
		return printSweepEntry(env, e)
	}
	opts.Progress = func(p census.SweepProgress) {
		status.Update("%s, %s changed", scanProgress("sweep", p.Progress), thousands(p.Changed))
	}
	summary, err := census.Sweep(ctx, end, opts)
	status.Clear()
	if err == nil || summary.Scanned > 0 {
		if printErr := printSweepSummary(env, summary, len(opts.Match) > 0); printErr != nil {
			return printErr
		}
	}
	var apart *census.ClockError
	if errors.As(err, &apart) {
		return unsafeError("set the clocks by NTP, or run sweep on a host whose clock is right", "%w", err)
	}
	if err != nil && summary.Scanned > 0 && !errors.Is(err, context.Canceled) {
		return failedError("run it again: what is cleared is no candidate any more", "after %d keys: %w", summary.Scanned, err)
	}
	if n := summary.ByResult[census.Refused]; err == nil && n > 0 {
		return failedError("see the reason below each key, and run it again", "the server refused %d of %s", n, counted(summary.Candidates, "change"))
	}
	if err == nil && summary.Unread > 0 {
		return inconclusiveError("grant this user the keys and commands, see SECURITY.md, and run it again", "%d keys could not be read: %s", summary.Unread, summary.Why)
	}
	return err
}

func printSweepEntry(env *environment, e census.SweepEntry) error {
	return env.print(e, func(b *strings.Builder) {
		what := string(e.Action)
		switch {
		case e.Result == census.Left:
			what = "-"
		case e.Action == census.Expire:
			what = "expire in " + short(time.Duration(e.TTLMS)*time.Millisecond)
		}
		why := "no TTL"
		if e.ExpiredMS > 0 {
			why = "expired " + short(time.Duration(e.ExpiredMS)*time.Millisecond) + " ago"
		}
		fmt.Fprintf(b, "%-8s  %-15s  %-12s  %-17s  %s\n", e.Result, what, e.Format, why, quoted(e.Key))
		if e.Note != "" {
			fmt.Fprintf(b, "          %s\n", safe(e.Note))
		}
	})
}

func printSweepSummary(env *environment, s census.Swept, chosen bool) error {
	return env.print(map[string]any{"summary": s}, func(b *strings.Builder) {
		fmt.Fprintf(b, "%s in %.1f s, %s%s\n", counted(s.Scanned, "key"), s.Seconds, counted(s.Candidates, "candidate"), listed(s.ByFormat))
		switch {
		case s.Executed && s.Candidates == 0:
			b.WriteString("nothing was changed\n")
		case s.Executed:
			fmt.Fprintf(b, "changed%s\n", listed(s.ByResult))
		case s.Candidates > 0 && chosen:
			b.WriteString(nothingWritten("", nil))
		case s.Candidates > 0:
			b.WriteString("nothing was changed; --execute changes those that --match chooses: by its form alone a time of the application looks like a lock\n")
		}
		for _, why := range slices.Sorted(maps.Keys(s.Left)) {
			fmt.Fprintf(b, "left: %s, %s\n", thousands(s.Left[why]), why)
		}
		switch {
		case s.Unread > 0:
			fmt.Fprintf(b, "NOT READ: %s: %s\n", counted(s.Unread, "key"), s.Why)
		case !s.Complete:
			b.WriteString("NOT ALL KEYS WERE LOOKED AT: run it again\n")
		}
	})
}
