package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/servers"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

func newStageInitCommand(env *environment, flags *stageFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Create the record of a namespace",
		Long: `init creates the record of a namespace: its key patterns, and
what is known of its legacy clients. That is their dialect, their shortest lease, how
far their clocks are behind, and how late their commands come. --profile takes these from what
observe measured, with a margin that the plan names; a flag overrules it. init
looks at what stands on the keys, and refuses a dialect that the values contradict. It
prints its plan, and writes only with --execute. A namespace that exists
already is left as it is: "lockmigrate stage set" corrects it, and
"lockmigrate stage delete" removes it.

No key may belong to two namespaces. init compares the patterns with every
namespace of every master, and reserves the keys before it writes.`,
		Example: `  lockmigrate observe --match 'lock.order.*' --for 10m --profile fleet.json
  lockmigrate stage init --namespace orders --profile fleet.json --execute
  lockmigrate stage init --namespace orders --match 'lock.order.*' \
      --dialect jedis-ms --shortest-lease 30s --execute`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, at *place) error {
				return initStage(ctx, env, at, *flags)
			})
		},
	}
	f := cmd.Flags()
	describeFlags(cmd, flags)
	f.StringVar(&flags.profile, "profile", "", "the `FILE` that observe --profile wrote: what is not given is taken from it")
	f.StringVar(&flags.begin, "stage", "legacy", "the `STAGE` to begin with: legacy, or bridge where all clients are new")
	return cmd
}

// describeFlags are the flags that say what a namespace is.
func describeFlags(cmd *cobra.Command, flags *stageFlags) {
	f := cmd.Flags()
	f.StringArrayVar(&flags.match, "match", nil, `a key `+"`PATTERN`"+` of the namespace, in which * and ? are special and \xHH is a byte; repeatable`)
	f.StringVar(&flags.dialect, "dialect", "", "`NAME` of the dialect that the legacy clients speak: jedis-ms, redispy-float ...; \"lockmigrate observe\" tells")
	f.DurationVar(&flags.shortest, "shortest-lease", 0, "the shortest lease of any legacy client: a `DURATION`")
	f.DurationVar(&flags.lag, "clock-lag", 0, "how far a legacy client's clock may be behind the server's: a `DURATION`; 0: 1s")
	f.DurationVar(&flags.delay, "command-delay", 0, "how late a legacy client's command may come after it read an expiry: a `DURATION`; 0: 250ms")
	f.DurationVar(&flags.yield, "yield", 0, "for how long services leave a contended key free at a time; longer than a legacy client's pause between two looks: a `DURATION`; 0: the dialect's pause and a fifth, 120ms for most")
	f.StringVar(&flags.force, "force", "", "go on although the keys hold values of another dialect; the `REASON` is kept in the record")
	f.BoolVar(&flags.execute, "execute", false, "write; without it the plan is printed and nothing is written")
}

// checkedRecord turns what a command line says into a record, or says why there can be no such namespace.
func checkedRecord(record stages.Record) (stages.Record, error) {
	for i, p := range record.Patterns {
		record.Patterns[i] = stages.Unescape(p)
	}
	if err := stages.CheckPatterns(record.Patterns); err != nil {
		return record, usageError("give --match 'lock.order.*', once for each pattern", "%w", err)
	}
	if record.Dialect == "" {
		return record, usageError(`"lockmigrate scan" and "lockmigrate observe" tell which dialect the clients speak`, "--dialect is missing: values of another dialect read as free or as held for ever")
	}
	dialect, err := protocol.DialectNamed(record.Dialect)
	if err != nil {
		return record, usageError(`"lockmigrate observe" tells which dialect the clients speak`, "%w", err)
	}
	record.Dialect = dialect.String()
	switch {
	case record.Shortest <= 0:
		return record, usageError("give --shortest-lease 30s; longer than it really is would be unsafe", "the shortest lease of the legacy clients is missing")
	case record.Shortest%time.Millisecond != 0:
		return record, usageError("give whole milliseconds", "--shortest-lease %v has a fraction of a millisecond", record.Shortest)
	}
	for flag, d := range map[string]time.Duration{"--clock-lag": record.ClockLag, "--command-delay": record.CommandDelay, "--yield": record.Yield} {
		if d < 0 || d%time.Millisecond != 0 {
			return record, usageError("give whole milliseconds, 0 or more", "%s %v", flag, d)
		}
	}
	opts := compat.Options{Dialect: dialect, ShortestLease: record.Shortest, ClockLag: record.ClockLag, CommandDelay: record.CommandDelay, Yield: record.Yield}
	if err := opts.Validate(); err != nil {
		return record, unsafeError("leases this short leave no time to notice an overlap: move these clients first, or measure the delay again and give --command-delay", "the bridge is not safe beside leases of %v: %w", record.Shortest, err)
	}
	return record, nil
}

func initStage(ctx context.Context, env *environment, at *place, flags stageFlags) error {
	begin, err := stages.Parse(flags.begin)
	switch {
	case err != nil:
		return usageError("choose legacy or bridge", "%w", err)
	case begin == stages.Modern:
		return unsafeError("begin with legacy or bridge, and advance", "a namespace cannot begin at modern: nobody has waited for its legacy clients")
	}
	why, err := flags.measured()
	if err != nil {
		return err
	}
	record, err := checkedRecord(stages.Record{Namespace: at.store.Namespace, Stage: begin, Epoch: 1, Patterns: slices.Clone(flags.match),
		Dialect: flags.dialect, Shortest: flags.shortest, ClockLag: flags.lag, CommandDelay: flags.delay, Yield: flags.yield})
	if err != nil {
		return err
	}
	for _, line := range why {
		env.note("from the profile: %s", terminal.Safe(line))
	}
	if view, err := at.store.Show(ctx); err == nil {
		return failedError(`change its stage with "lockmigrate stage advance", correct it with "lockmigrate stage set", remove it with "lockmigrate stage delete"`,
			"namespace %s exists already: stage %v, epoch %d", at.store.Namespace, view.Record.Stage, view.Record.Epoch)
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
	seen, err := lookAt(ctx, env, at.end, record.Patterns)
	if err != nil {
		return err
	}
	refused := forceable(env, seen.speak(record.Dialect), flags.force)
	plan := fmt.Sprintf("create namespace %s at stage %v: keys %s, %s", at.store.Namespace, begin, shownPatterns(record.Patterns), knownClients(record))
	if !flags.execute {
		if err := printPlan(env, plan, record, seen, nil, refused); err != nil {
			return err
		}
		return refused
	}
	if refused != nil {
		return refused
	}
	if strings.TrimSpace(flags.force) != "" {
		record.Note = "forced: " + flags.force
	}
	if err := at.store.Init(ctx, record); err != nil {
		return err
	}
	return showStage(ctx, env, at.store)
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
		case f.lag > 0 && f.lag < old.ClockLag:
			return nil, bold("--clock-lag", f.lag, old.ClockLag, "shorter")
		case f.delay > 0 && f.delay < old.CommandDelay:
			return nil, bold("--command-delay", f.delay, old.CommandDelay, "shorter")
		case f.yield > 0 && f.yield < old.Yield:
			return nil, bold("--yield", f.yield, old.Yield, "shorter")
		}
	}
	if len(f.match) == 0 {
		f.match = slices.Clone(p.Match)
	}
	f.dialect, f.shortest = cmp.Or(f.dialect, old.Dialect), cmp.Or(f.shortest, old.Shortest)
	f.lag, f.delay, f.yield = cmp.Or(f.lag, old.ClockLag), cmp.Or(f.delay, old.CommandDelay), cmp.Or(f.yield, old.Yield)
	return old.Why, nil
}

// forceable lets --force overrule a refusal: it is said, and does not stand in the way.
func forceable(env *environment, refused error, force string) error {
	if refused != nil && isOwnError(refused) && strings.TrimSpace(force) != "" {
		env.note("forced: %s", terminal.Safe(refused.Error()))
		return nil
	}
	return refused
}

func shownPatterns(patterns []string) string {
	shown := make([]string, len(patterns))
	for i, p := range patterns {
		shown[i] = stages.Escape(p)
	}
	return terminal.Safe(strings.Join(shown, " "))
}

// printPlan says what --execute would do, what was seen on the keys, who is in the way, and why it would be refused.
func printPlan(env *environment, plan string, record stages.Record, seen *keysSeen, blockers []stages.Blocker, refused error) error {
	if env.global.json {
		doc := map[string]any{
			"plan": plan, "executed": false, "namespace": record.Namespace, "stage": record.Stage.String(), "epoch": record.Epoch,
			"blocked_by": blockersJSON(blockers),
		}
		if seen != nil {
			doc["on_the_keys"] = seen.String()
		}
		if refused != nil {
			doc["refused"], doc["hint"] = refused.Error(), hintOf(refused)
		}
		return json.NewEncoder(env.stdout).Encode(doc)
	}
	text := fmt.Sprintf("plan: %s\n", terminal.Safe(plan))
	if seen != nil {
		text += fmt.Sprintf("on the keys: %s\n", seen)
	}
	for _, b := range blockers {
		text += fmt.Sprintf("in the way: %s\n", terminal.Safe(b.String()))
	}
	if err := env.show(text); err != nil {
		return err
	}
	if refused == nil {
		env.note("nothing was written; add --execute to do it")
	}
	return nil
}

func newStageListCommand(env *environment, flags *stageFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the namespaces of a server or cluster",
		Long: `list shows every namespace of every master: stage, epoch, how many members
live, dialect, and keys. "reserved" means that keys are reserved and there is no record: an init was
stopped in the middle. Run it again, or free the keys with "lockmigrate stage
delete".`,
		Example: "  lockmigrate stage list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, at *place) error { return listStages(ctx, env, at) })
		},
	}
}

// listedJSON is one row of `stage list --json`.
type listedJSON struct {
	Namespace string   `json:"namespace"`
	Stage     string   `json:"stage"` // reserved: keys without a record
	Epoch     int64    `json:"epoch"`
	Members   int      `json:"members"` // that live
	Dialect   string   `json:"dialect"`
	Patterns  []string `json:"patterns"`
}

func listStages(ctx context.Context, env *environment, at *place) error {
	all, err := at.store.List(ctx)
	if err != nil {
		return err
	}
	rows := []listedJSON{}
	for _, one := range all {
		r := one.View.Record
		row := listedJSON{Namespace: one.Name, Stage: "reserved", Patterns: []string{}}
		patterns := one.Reserved
		if one.Unknown == nil {
			row.Stage, row.Epoch, row.Dialect, patterns = r.Stage.String(), r.Epoch, r.Dialect, r.Patterns
			for _, m := range one.View.Members {
				if m.Lives() {
					row.Members++
				}
			}
		}
		for _, p := range patterns {
			row.Patterns = append(row.Patterns, stages.Escape(p))
		}
		rows = append(rows, row)
	}
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{"namespaces": rows})
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(env.stdout, "no namespaces")
		return err
	}
	t := terminal.NewTable(terminal.Column{Head: "NAMESPACE"}, terminal.Column{Head: "STAGE"}, terminal.Column{Head: "EPOCH", Right: true}, terminal.Column{Head: "MEMBERS", Right: true},
		terminal.Column{Head: "DIALECT"}, terminal.Column{Head: "KEYS", Wrap: true})
	for _, r := range rows {
		t.Row(terminal.Safe(r.Namespace), r.Stage, fmt.Sprint(r.Epoch), fmt.Sprint(r.Members), orDash(r.Dialect), terminal.Safe(strings.Join(r.Patterns, " ")))
	}
	_, err = io.WriteString(env.stdout, t.Render(env.screen(), env.ink()))
	return err
}

func newStageHistoryCommand(env *environment, flags *stageFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "history [flags]",
		Short: "Show who changed a namespace, when, from where and why",
		Long: `history shows the last 50 changes of a namespace's record, by the server's
clock: who created it, moved it, or corrected it, and on which certificate, or
for which reason, the step rests. The name is $LOCKMIGRATE_BY, or the user and host of the
command.`,
		Example: "  lockmigrate stage history --namespace orders",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, at *place) error {
				view, err := at.store.Show(ctx)
				if err != nil {
					return err
				}
				if env.global.json {
					return json.NewEncoder(env.stdout).Encode(map[string]any{"namespace": at.store.Namespace, "history": append([]stages.Change{}, view.Record.History...)})
				}
				var b strings.Builder
				for _, c := range view.Record.History {
					fmt.Fprintf(&b, "%s  epoch %-3d  %s  %s\n", c.At.Format(time.RFC3339), c.Epoch, terminal.Safe(c.By), terminal.Safe(c.What))
					if c.Note != "" {
						fmt.Fprintf(&b, "    %s\n", terminal.Safe(c.Note))
					}
				}
				return env.show(b.String())
			})
		},
	}
}
