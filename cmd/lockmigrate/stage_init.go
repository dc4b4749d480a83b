package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/glob"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/legacy"
)

func newStageInitCommand(env *environment, flags *stageFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Create the record of a namespace",
		RunE:  onStore(env, flags, (*place).init),
	}
	f := cmd.Flags()
	describeFlags(cmd, flags)
	f.StringVar(&flags.profile, "profile", "", "the `FILE` that observe --profile wrote: what is not given is taken from it")
	f.BoolVar(&flags.handover, "handover", false, "the record of package handover: the fleet moves from one lock to another; --redis is the server that stays")
	f.StringVar(&flags.old, "old", "", "with --handover: the `URL` of Old's server, where Old is a lock of this module")
	f.StringVar(&flags.oldName, "old-name", "", "with --handover: the `NAME` of Old, where it is not")
	f.StringVar(&flags.newName, "new-name", "", "with --handover: the `NAME` of New, where it is no lock of this module on --redis")
	choose(cmd, &flags.begin, "stage", "the `STAGE` to begin with: legacy, or bridge where all clients are new", stages.Legacy, stages.Bridge, stages.Modern)
	return cmd
}

// describeFlags are the flags that say what a namespace is.
func describeFlags(cmd *cobra.Command, flags *stageFlags) {
	f := cmd.Flags()
	f.StringArrayVar(&flags.match, "match", nil, `a key `+"`PATTERN`"+` of the namespace, in which * and ? are special, a backslash makes them ordinary, and \xHH is a byte; repeatable`)
	f.StringVar(&flags.dialect, "dialect", "", "`NAME` of the dialect that the legacy clients speak: jedis-ms, redispy-float ...; \"lockmigrate observe\" tells")
	f.DurationVar(&flags.shortest, "shortest-lease", 0, "the shortest lease of any legacy client: a `DURATION`")
	f.DurationVar(&flags.lag, "clock-lag", 0, "how far a legacy client's clock may be behind the server's: a `DURATION`; 1s unless given, and with 0s")
	f.DurationVar(&flags.delay, "command-delay", 0, "how late a legacy client's command may come after it read an expiry: a `DURATION`; 250ms unless given, and with 0s")
	f.DurationVar(&flags.yield, "yield", 0, "for how long services leave a contended key free at a time; longer than a legacy client's pause between two looks: a `DURATION`; unless given, and with 0s, the dialect's pause and a fifth, 120ms for most")
	f.DurationVar(&flags.longest, "longest-silence", 0, "the longest `DURATION` that any legacy client is silent, its lease or the pause between two runs of its job; verify takes it where its own --longest-silence is missing; not known unless given, and with 0s")
	f.StringVar(&flags.force, "force", "", "go on although the keys hold values of another dialect; the `REASON` is kept in the record")
	executeFlag(f, &flags.execute, "write")
	completes(cmd, "dialect", dialectNames)
}

// checkedRecord turns what a command line says into a record, or says why there can be no such namespace.
func checkedRecord(record stages.Record) (stages.Record, error) {
	if err := stages.CheckPatterns(record.Patterns); err != nil {
		return record, usageError("give --match 'lock.order.*', once for each pattern", "%w", err)
	}
	if record.Dialect == "" {
		return record, usageError(`"lockmigrate scan" and "lockmigrate observe" tell which dialect the clients speak`, "--dialect is missing: values of another dialect read as free or as held for ever")
	}
	dialect, err := protocol.DialectNamed(record.Dialect)
	if err != nil {
		return record, usageError(oneOf(dialectNames())+`; "lockmigrate observe" tells which dialect the clients speak`, "%w", err)
	}
	record.Dialect = dialect.String()
	switch {
	case record.Shortest <= 0:
		return record, usageError("give --shortest-lease 30s; longer than it really is would be unsafe", "the shortest lease of the legacy clients is missing")
	case record.Shortest%time.Millisecond != 0:
		return record, usageError("give whole milliseconds", "--shortest-lease %v has a fraction of a millisecond", record.Shortest)
	}
	if record.Longest > 0 && record.Longest < record.Shortest {
		return record, usageError("give the longest lease at least", "--longest-silence %v is less than the shortest lease of %v", record.Longest, record.Shortest)
	}
	for _, t := range timesOf(record) {
		if t.d%time.Millisecond != 0 {
			return record, usageError("give whole milliseconds", "--%s %v", strings.ReplaceAll(t.name, " ", "-"), t.d)
		}
	}
	opts := compat.Options{Dialect: legacy.Dialect{Name: dialect.Name}, ShortestLease: record.Shortest, ClockLag: record.ClockLag, CommandDelay: record.CommandDelay, Yield: record.Yield}
	if err := opts.Validate(); err != nil {
		return record, unsafeError("leases this short leave no time to notice an overlap: move these clients first, or measure the delay again and give --command-delay", "the bridge is not safe beside leases of %v: %w", record.Shortest, err)
	}
	return record, nil
}

func (at *place) init(ctx context.Context) error {
	flags := at.flags
	if flags.handover {
		return at.initHandover(ctx)
	}
	if flags.old != "" || flags.oldName != "" || flags.newName != "" {
		return usageError("add --handover, or leave them out", "--old, --old-name and --new-name are of a handover")
	}
	if flags.begin == stages.Modern {
		return unsafeError("begin with legacy or bridge, and advance", "a namespace cannot begin at modern: nobody has waited for its legacy clients")
	}
	why, err := flags.measured()
	if err != nil {
		return err
	}
	record, err := checkedRecord(stages.Record{Namespace: at.store.Namespace, Stage: flags.begin, Epoch: 1, Patterns: flags.match,
		Dialect: flags.dialect, Shortest: flags.shortest, ClockLag: flags.lag, CommandDelay: flags.delay, Yield: flags.yield, Longest: flags.longest})
	if err != nil {
		return err
	}
	for _, line := range why {
		at.env.note("from the profile: %s", terminal.Safe(line))
	}
	if view, err := at.store.Show(ctx); err == nil {
		return failedError(`change its stage with "lockmigrate stage advance", correct it with "lockmigrate stage set", remove it with "lockmigrate stage delete"`,
			"namespace %s exists already: stage %v, epoch %d%s", at.store.Namespace, view.Record.Stage, view.Record.Epoch, lastChange(view.Record))
	} else if !errors.Is(err, stages.ErrNoRecord) {
		return err
	}
	var old *servers.TooOld // a plan for a server that cannot run it is none
	if _, err := at.store.Hello(ctx); errors.As(err, &old) {
		return err
	}
	if err := at.store.CheckOthers(ctx, record.Patterns); err != nil {
		return err
	}
	seen, err := at.look(ctx, record.Patterns)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("create namespace %s at stage %v: keys %s, %s", at.store.Namespace, flags.begin, shownPatterns(record.Patterns), knownClients(record))
	return at.carryOut(plan{what: what, record: record, seen: seen, refused: at.forceable(seen.speak(record.Dialect))}, func() error {
		record.Note = flags.forced()
		if err := at.store.Init(ctx, record); err != nil {
			return err
		}
		return made(at.show(ctx))
	})
}

// measured fills what the command line leaves out from the profile that it names, and says what it took and why. A
// figure that the profile does not show has to be given.
func (f *stageFlags) measured() (why []string, err error) {
	if f.profile == "" {
		return nil, nil
	}
	p, err := openProfile(f.profile)
	if err != nil {
		return nil, err
	}
	if key, some := glob.Uncovered(stages.UnescapeAll(p.Match), f.match); some {
		return nil, inconclusiveError("observe them too; or leave --profile out, and give what is known of their clients",
			"%s says nothing of the keys %s: it is about %s", f.profile, stages.Escape(key), shownPatterns(stages.UnescapeAll(p.Match)))
	}
	old, err := p.OldClients()
	if err != nil && (f.dialect == "" || f.shortest == 0 || f.lag == 0 || f.delay == 0) {
		return nil, inconclusiveError("observe for longer, or while every old client works; or give --dialect, --shortest-lease, --clock-lag and --command-delay yourself", "%s: %w", f.profile, err)
	}
	if f.dialect != "" && old.Dialect != "" && f.dialect != old.Dialect {
		return nil, unsafeError("leave --dialect out, or find out who is right", "--dialect %s, but %s measured %s", f.dialect, f.profile, old.Dialect)
	}
	if err == nil {
		bold := func(flag string, given, measured time.Duration, how string) error {
			return unsafeError("leave "+flag+" out", "%s %v is %s than %v, which %s measured", flag, given, how, measured, f.profile)
		}
		switch {
		case f.shortest > old.Shortest:
			return nil, bold("--shortest-lease", f.shortest, old.Shortest, "longer")
		case f.given("clock-lag") && f.lag < old.ClockLag:
			return nil, bold("--clock-lag", f.lag, old.ClockLag, "shorter")
		case f.given("command-delay") && f.delay < old.CommandDelay:
			return nil, bold("--command-delay", f.delay, old.CommandDelay, "shorter")
		case f.given("yield") && f.yield < old.Yield:
			return nil, bold("--yield", f.yield, old.Yield, "shorter")
		case f.given("longest-silence") && f.longest < old.Longest:
			return nil, bold("--longest-silence", f.longest, old.Longest, "shorter")
		}
	}
	if len(f.match) == 0 {
		f.match = stages.UnescapeAll(p.Match)
	}
	f.dialect, f.shortest = cmp.Or(f.dialect, old.Dialect), cmp.Or(f.shortest, old.Shortest)
	f.lag, f.delay, f.yield = cmp.Or(f.lag, old.ClockLag), cmp.Or(f.delay, old.CommandDelay), cmp.Or(f.yield, old.Yield)
	return old.Why, nil
}
