package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/stages/profile"
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
	f.StringVar(&flags.old, "old", "", "with --handover: the URL of Old's server, where Old is a lock of this module; else a `NAME` for it")
	f.StringVar(&flags.newName, "new", "", "with --handover: a `NAME` for New, where it is no lock of this module on --redis")
	choose(cmd, &flags.begin, "stage", "the `STAGE` to begin with: legacy, or bridge where all clients are new", stages.Legacy, stages.Bridge, stages.Modern)
	return cmd
}

// describeFlags are the flags that say what a namespace is.
func describeFlags(cmd *cobra.Command, flags *stageFlags) {
	f := cmd.Flags()
	f.StringArrayVar(&flags.match, "match", nil, `a key `+"`PATTERN`"+` of the namespace, in which * and ? are special, a backslash makes them ordinary, and \xHH is a byte; repeatable`)
	f.StringVar(&flags.dialect, "dialect", "", "`NAME` of the dialect that the legacy clients speak: jedis-ms, redispy-float ...; \"lockmigrate observe\" tells")
	for _, figure := range stages.Figures {
		f.DurationVar(figure.Of(&flags.figures), figure.Flag(), 0, figure.Usage)
	}
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
	if record.Shortest <= 0 {
		return record, usageError("give --shortest-lease 30s; longer than it really is would be unsafe", "the shortest lease of the legacy clients is missing")
	}
	if record.Longest > 0 && record.Longest < record.Shortest {
		return record, usageError("give the longest lease at least", "--longest-silence %v is less than the shortest lease of %v", record.Longest, record.Shortest)
	}
	for _, f := range stages.Figures {
		if d := *f.Of(&record); d%time.Millisecond != 0 {
			return record, usageError("give whole milliseconds", "--%s %v", f.Flag(), d)
		}
	}
	opts := compat.Options{Dialect: legacy.Dialect{Name: dialect.Name}, ShortestLease: record.Shortest, ClockLag: record.ClockLag, CommandDelay: record.CommandDelay, Yield: record.Yield}
	if err := opts.Validate(); err != nil {
		return record, unsafeError("leases this short leave no time to notice an overlap: move these clients first, or measure the delay again and give --command-delay", "the bridge is not safe beside leases of %v: %w", record.Shortest, err)
	}
	return record, nil
}

// room refuses a new record where there is one, where the server cannot run it, or where its keys are another namespace's.
func (at *place) room(ctx context.Context, patterns []string) error {
	if view, err := at.store.Show(ctx); err == nil {
		return failedError(`change its stage with "lockmigrate stage advance", correct it with "lockmigrate stage set", remove it with "lockmigrate stage delete"`,
			"namespace %s exists already: stage %v, epoch %d%s", at.store.Namespace, view.Record.Stage, view.Record.Epoch, lastChange(view.Record))
	} else if !errors.Is(err, stages.ErrNoRecord) {
		return err
	} else if err := view.Lost(); err != nil {
		return failedError("wait for them, and run it again", "namespace %s: %w", at.store.Namespace, err)
	}
	var old *servers.TooOld // a plan for a server that cannot run it is none
	if _, err := at.store.Hello(ctx); errors.As(err, &old) {
		return err
	}
	return at.store.CheckOthers(ctx, patterns)
}

func (at *place) init(ctx context.Context) error {
	flags := at.flags
	if flags.handover {
		return at.initHandover(ctx)
	}
	if flags.old != "" || flags.newName != "" {
		return usageError("add --handover, or leave them out", "--old and --new are of a handover")
	}
	if flags.begin == stages.Modern {
		return unsafeError("begin with legacy or bridge, and advance", "a namespace cannot begin at modern: nobody has waited for its legacy clients")
	}
	record, seen, why, err := at.creation(ctx)
	for _, line := range why {
		at.env.note("from the profile: %s", safe(line))
	}
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

// creation is the record that stage init creates, what stands on its keys, and what of it is from the profile; or why there can be none.
func (at *place) creation(ctx context.Context) (record stages.Record, seen *keysSeen, why []string, err error) {
	flags := at.flags
	if why, err = flags.measured(); err != nil {
		return record, nil, nil, err
	}
	record = flags.figures
	record.Namespace, record.Stage, record.Epoch, record.Patterns, record.Dialect = at.store.Namespace, flags.begin, 1, flags.match, flags.dialect
	if record, err = checkedRecord(record); err == nil {
		err = at.room(ctx, record.Patterns)
	}
	if err == nil {
		seen, err = at.look(ctx, record.Patterns)
	}
	return record, seen, why, err
}

// aboutKeys refuses a profile that says nothing of some keys.
func aboutKeys(file string, p profile.Profile, match []string) error {
	about := stages.UnescapeAll(p.Match)
	if key, some := servers.Uncovered(about, match); some {
		return inconclusiveError("observe them too; or leave --profile out, and give what is known of their clients",
			"%s says nothing of the keys %s: it is about %s", file, stages.Escape(key), shownPatterns(about))
	}
	return nil
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
	if err := aboutKeys(f.profile, p, f.match); err != nil {
		return nil, err
	}
	old, err := p.OldClients()
	if err != nil && (f.dialect == "" || f.figures.Shortest == 0 || f.figures.ClockLag == 0 || f.figures.CommandDelay == 0) {
		return nil, inconclusiveError("observe for longer, or while every old client works; or give --dialect, --shortest-lease, --clock-lag and --command-delay yourself", "%s: %w", f.profile, err)
	}
	if f.dialect != "" && old.Dialect != "" && f.dialect != old.Dialect {
		return nil, unsafeError("leave --dialect out, or find out who is right", "--dialect %s, but %s measured %s", f.dialect, f.profile, old.Dialect)
	}
	measured := stages.Record{Shortest: old.Shortest, ClockLag: old.ClockLag, CommandDelay: old.CommandDelay, Yield: old.Yield, Longest: old.Longest}
	for _, figure := range stages.Figures {
		given, known := *figure.Of(&f.figures), *figure.Of(&measured)
		if err == nil && f.given(figure.Flag()) && figure.Bolder(given, known) {
			return nil, unsafeError("leave --"+figure.Flag()+" out", "--%s %v is %s than %v, which %s measured", figure.Flag(), given, figure.How, known, f.profile)
		}
	}
	if len(f.match) == 0 {
		f.match = stages.UnescapeAll(p.Match)
	}
	f.dialect = cmp.Or(f.dialect, old.Dialect)
	measured.Longest = 0 // a job that runs more rarely was not seen
	for _, figure := range stages.Figures {
		*figure.Of(&f.figures) = cmp.Or(*figure.Of(&f.figures), *figure.Of(&measured))
	}
	return old.Why, nil
}
