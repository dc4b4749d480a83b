package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/internal/terminal"
)

// stageFlags are the flags of stage and of those below it.
type stageFlags struct {
	namespace string
	execute   bool
	to        string
	epoch     int64
	timeout   time.Duration
	evidence  string // a file that verify wrote
	force     string // why to go on without

	match    []string
	dialect  string
	shortest time.Duration
	begin    string
}

func newStageCommand(env *environment) *cobra.Command {
	var flags stageFlags
	cmd := &cobra.Command{
		Use:   "stage [flags]",
		Short: "Show and change the stage of a namespace: legacy, bridge, modern",
		Long: `stage shows which stage a namespace is at, and every service that is a member
of it: which epoch it runs, when it reported last, and how far its clock is
from the server's.

A namespace is a set of key patterns that move together. Its record is kept in
Redis, and every service that uses package compat with this Namespace follows
it.

Only neighbouring stages can ever be in use together: legacy and bridge, or
bridge and modern. "advance" waits until every member runs the present stage
and every silent one has run out; it may be interrupted and run again at any
time.`,
		Example: `  lockmigrate stage init --namespace orders --match 'lock.order.*' \
      --dialect jedis-ms --shortest-lease 30s --execute
  lockmigrate stage --namespace orders
  lockmigrate stage advance --namespace orders --to bridge --execute
  lockmigrate stage rollback --namespace orders --execute`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, flags, func(ctx context.Context, store *stages.Store) error {
				return showStage(ctx, env, store)
			})
		},
	}
	cmd.PersistentFlags().StringVar(&flags.namespace, "namespace", "default", "`NAME` of the namespace")
	cmd.AddCommand(newStageInitCommand(env, &flags),
		newStageMoveCommand(env, &flags, "advance", +1, "Move a namespace to the next stage, when no member is in the way"),
		newStageMoveCommand(env, &flags, "rollback", -1, "Move a namespace back to the stage before"))
	return cmd
}

func newStageInitCommand(env *environment, flags *stageFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init [flags]",
		Short: "Create the record of a namespace",
		Long: `init creates the record of a namespace: its key patterns, the dialect of its
legacy clients and the shortest lease that any of them takes. It prints its
plan, and writes only with --execute. A namespace that exists already is left
as it is.`,
		Example: `  lockmigrate stage init --namespace orders --match 'lock.order.*' \
      --dialect jedis-ms --shortest-lease 30s --execute`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, store *stages.Store) error {
				return initStage(ctx, env, store, *flags)
			})
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&flags.match, "match", nil, "a key `PATTERN` of the namespace, in which * and ? are special; repeatable")
	f.StringVar(&flags.dialect, "dialect", "jedis-ms", "`NAME` of the dialect that the legacy clients speak")
	f.DurationVar(&flags.shortest, "shortest-lease", 0, "the shortest lease of any legacy client: a `DURATION`")
	f.StringVar(&flags.begin, "stage", "legacy", "the `STAGE` to begin with: legacy, or bridge where all clients are new")
	f.BoolVar(&flags.execute, "execute", false, "write; without it the plan is printed and nothing is written")
	return cmd
}

func newStageMoveCommand(env *environment, flags *stageFlags, name string, step stages.Stage, short string) *cobra.Command {
	long := `advance moves a namespace one stage on: legacy to bridge, bridge to modern. It
waits until every live member runs the present epoch and silent members have
run out, and says whom it waits for.

Name the stage with --to: then running the command twice is running it once.
The record knows its members only. Before modern, "lockmigrate verify" must
have found that no legacy client is left that is not a member.`
	if step < 0 {
		long = `rollback moves a namespace one stage back: modern to bridge, bridge to legacy.
A step that members have not taken yet, or only some of them, is undone at
once; it waits only for what is two stages away from where it leads.`
	}
	cmd := &cobra.Command{
		Use: name + " [flags]", Short: short, Long: long,
		Example: "  lockmigrate stage " + name + " --namespace orders --execute",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, store *stages.Store) error {
				return moveStage(ctx, env, store, *flags, step)
			})
		},
	}
	f := cmd.Flags()
	if step > 0 {
		f.StringVar(&flags.evidence, "certificate", "", "the `FILE` that verify --out wrote in this epoch, not older than a day: modern wants it")
		f.StringVar(&flags.force, "force", "", "go to modern without a certificate; the `REASON` is kept in the record")
	}
	f.StringVar(&flags.to, "to", "", "the `STAGE` to reach; nothing is done if it is reached already")
	f.Int64Var(&flags.epoch, "epoch", 0, "refuse unless the record is at epoch `N`")
	f.DurationVar(&flags.timeout, "timeout", 0, "give up waiting after this `DURATION`, exit code 4; 0 waits for ever")
	f.BoolVar(&flags.execute, "execute", false, "write; without it the plan is printed and nothing is written")
	return cmd
}

// stageReplyTimeout bounds the wait for one reply.
const stageReplyTimeout = 5 * time.Second

// withStore opens the namespace's store for the time of a command.
func withStore(ctx context.Context, env *environment, flags stageFlags, run func(context.Context, *stages.Store) error) error {
	if err := stages.CheckName(flags.namespace); err != nil {
		return usageError("choose another --namespace", "%w", err)
	}
	end, stop, err := env.endpoint("")
	if err != nil {
		return err
	}
	defer stop()
	pool, err := end.Locks()
	if err != nil {
		return err
	}
	defer pool.Close()
	store := &stages.Store{Pool: pool, Namespace: flags.namespace, ReplyTimeout: stageReplyTimeout}
	return explainStage(run(ctx, store))
}

// explainStage adds a hint to what a store finds.
func explainStage(err error) error {
	var waited *stages.Waited
	switch {
	case err == nil || isOwnError(err):
		return err
	case errors.Is(err, stages.ErrNoRecord):
		return failedError(`create it with "lockmigrate stage init", or name another with --namespace`, "%w", err)
	case errors.Is(err, stages.ErrConflict):
		return failedError(`look at it with "lockmigrate stage" and decide again`, "%w", err)
	case errors.Is(err, stages.ErrNoNeighbour):
		return unsafeError("go there one stage at a time", "%w", err)
	case errors.As(err, &waited):
		return inconclusiveError("nothing was changed; run it again, now or later", "%w", err)
	case errors.Is(err, context.Canceled):
		return err
	default:
		return endpoint.Explain(err)
	}
}

func initStage(ctx context.Context, env *environment, store *stages.Store, flags stageFlags) error {
	dialect, err := compat.ParseDialect(flags.dialect)
	if err != nil {
		return usageError(`"lockmigrate observe" tells which dialect the clients speak`, "%w", err)
	}
	begin, err := stages.Parse(flags.begin)
	switch {
	case err != nil:
		return usageError("choose legacy or bridge", "%w", err)
	case begin == stages.Modern:
		return unsafeError("begin with legacy or bridge, and advance", "a namespace cannot begin at modern: nobody has waited for its legacy clients")
	}
	if err := stages.CheckPatterns(flags.match); err != nil {
		return usageError("give --match 'lock.order.*', once for each pattern", "%w", err)
	}
	if flags.shortest <= 0 {
		return usageError("give --shortest-lease 30s; longer than it really is would be unsafe", "the shortest lease of the legacy clients is missing")
	}
	opts := compat.Options{Dialect: dialect, ShortestLease: flags.shortest, Lease: max(flags.shortest, compat.DefaultLease)}
	if err := opts.Validate(); err != nil {
		return unsafeError("the services would have to set tighter compat.Options; see their Validate", "with a shortest lease of %v the default options are unsafe: %w", flags.shortest, err)
	}
	record := stages.Record{Namespace: store.Namespace, Stage: begin, Epoch: 1, Patterns: flags.match, Dialect: dialect.String(), Shortest: flags.shortest}
	if view, err := store.Show(ctx); err == nil {
		return failedError(`change its stage with "lockmigrate stage advance"`, "namespace %s exists already: stage %v, epoch %d", store.Namespace, view.Record.Stage, view.Record.Epoch)
	} else if !errors.Is(err, stages.ErrNoRecord) {
		return err
	}
	if err := store.CheckOthers(ctx, record); errors.Is(err, stages.ErrOverlap) {
		return unsafeError("choose patterns that have no key in common", "%w", err)
	} else if err != nil {
		return err
	}
	plan := fmt.Sprintf("create namespace %s at stage %v: keys %s, dialect %s, shortest lease %v",
		store.Namespace, begin, strings.Join(flags.match, " "), dialect, flags.shortest)
	if !flags.execute {
		return printPlan(env, plan, record)
	}
	if err := store.Init(ctx, record); err != nil {
		return err
	}
	return showStage(ctx, env, store)
}

// printPlan says what --execute would do.
func printPlan(env *environment, plan string, record stages.Record) error {
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{
			"plan": plan, "executed": false, "namespace": record.Namespace, "stage": record.Stage.String(), "epoch": record.Epoch,
		})
	}
	fmt.Fprintf(env.stdout, "plan: %s\n", terminal.Safe(plan))
	fmt.Fprintln(env.stderr, "lockmigrate: nothing was written; add --execute to do it")
	return nil
}

func moveStage(ctx context.Context, env *environment, store *stages.Store, flags stageFlags, step stages.Stage) error {
	view, err := store.Show(ctx)
	if err != nil {
		return err
	}
	from := view.Record.Stage
	to := from + step
	if flags.to != "" {
		if to, err = stages.Parse(flags.to); err != nil {
			return usageError("choose legacy, bridge or modern", "%w", err)
		}
	}
	switch {
	case flags.epoch != 0 && flags.epoch != view.Record.Epoch && to != from:
		return failedError(`look at it with "lockmigrate stage"`, "the record is at epoch %d, not %d", view.Record.Epoch, flags.epoch)
	case to == from: // reached already: a command that is run again
		fmt.Fprintf(env.stderr, "lockmigrate: namespace %s is at %v already\n", store.Namespace, to)
		return showStage(ctx, env, store)
	case !to.Valid():
		return usageError("there is none beyond it", "namespace %s is at %v, the %s stage", store.Namespace, from, map[stages.Stage]string{+1: "last", -1: "first"}[step])
	case (to > from) != (step > 0):
		return usageError("use the other of advance and rollback", "%v lies in the other direction from %v", to, from)
	}
	note, evidenceErr := restsOn(env.now(), view.Record, to, flags)
	if !flags.execute {
		if err := planMove(ctx, env, store, view, to); err != nil || evidenceErr == nil || env.global.json {
			return err
		}
		fmt.Fprintf(env.stdout, "first: %v: %s\n", evidenceErr, hintOf(evidenceErr))
		return nil
	}
	if evidenceErr != nil {
		return evidenceErr
	}
	if flags.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, flags.timeout, errors.New("gave up after --timeout"))
		defer cancel()
		ctx = limited
	}
	status := env.status()
	last := ""
	mover := &stages.Mover{Store: store, Look: 250 * time.Millisecond, Epoch: view.Record.Epoch, Note: note}
	err = mover.Run(ctx, to, func(_ stages.View, blockers []stages.Blocker) {
		text := blocked(blockers)
		status.Update(func() string { return text })
		if why := who(blockers); why != last && !env.isTerminal(env.stderr) {
			last = why
			fmt.Fprintln(env.stderr, "lockmigrate: "+text)
		}
	})
	status.Clear()
	if err != nil {
		return err
	}
	return showStage(ctx, env, store)
}

// planMove says what a move would do, and who is in the way at the moment.
func planMove(ctx context.Context, env *environment, store *stages.Store, view stages.View, to stages.Stage) error {
	blockers, err := store.Move(ctx, view.Record.Epoch, to, false)
	if err != nil {
		return err
	}
	plan := fmt.Sprintf("move namespace %s from %v to %v, epoch %d to %d", store.Namespace, view.Record.Stage, to, view.Record.Epoch, view.Record.Epoch+1)
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(map[string]any{
			"plan": plan, "executed": false, "namespace": store.Namespace, "stage": view.Record.Stage.String(),
			"epoch": view.Record.Epoch, "blocked_by": blockersJSON(blockers),
		})
	}
	fmt.Fprintf(env.stdout, "plan: %s\n", plan)
	for _, b := range blockers {
		fmt.Fprintf(env.stdout, "waits: %s\n", terminal.Safe(b.String()))
	}
	fmt.Fprintln(env.stderr, "lockmigrate: nothing was written; add --execute to do it")
	return nil
}

func blocked(blockers []stages.Blocker) string {
	text := "waiting: " + terminal.Safe(blockers[0].String())
	if n := len(blockers) - 1; n > 0 {
		text += fmt.Sprintf(", and for %d more", n)
	}
	return text
}

// who names the blockers and why, without the times, to tell a new situation from the same one.
func who(blockers []stages.Blocker) string {
	var all []string
	for _, b := range blockers {
		all = append(all, b.Member+":"+b.Why)
	}
	return strings.Join(all, " ")
}

// stageJSON is what `stage --json` prints.
type stageJSON struct {
	Namespace string        `json:"namespace"`
	Stage     string        `json:"stage"`
	Epoch     int64         `json:"epoch"`
	Since     time.Time     `json:"since"`
	Patterns  []string      `json:"patterns"`
	Dialect   string        `json:"dialect"`
	Shortest  int64         `json:"shortest_lease_ms"`
	RestsOn   string        `json:"rests_on,omitempty"` // a certificate, or why it was forced
	Members   []memberJSON  `json:"members"`
	BlockedBy []blockerJSON `json:"blocked_by"` // of the next advance
}

type memberJSON struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	Process int    `json:"pid"`
	Version string `json:"version"`
	Epoch   int64  `json:"epoch"` // -1: none yet
	Stage   string `json:"stage"` // empty: none yet
	Lowest  string `json:"lowest_stage_in_use"`
	Highest string `json:"highest_stage_in_use"`
	Seen    int64  `json:"seen_ms_ago"`
	Left    int64  `json:"lease_left_ms"` // negative: silent
	Skew    int64  `json:"skew_ms"`       // positive: ahead of the server
}

type blockerJSON struct {
	Member string `json:"member"`
	Why    string `json:"why"`
	Wait   int64  `json:"wait_ms"` // -1 while it lives
	Text   string `json:"text"`
}

func blockersJSON(blockers []stages.Blocker) []blockerJSON {
	all := []blockerJSON{}
	for _, b := range blockers {
		wait := b.Wait.Milliseconds()
		if b.Wait < 0 {
			wait = -1
		}
		all = append(all, blockerJSON{b.Member, b.Why, wait, b.String()})
	}
	return all
}

// showStage prints the record, its members, and what is in the way of the next stage.
func showStage(ctx context.Context, env *environment, store *stages.Store) error {
	view, err := store.Show(ctx)
	if err != nil {
		return err
	}
	var blockers []stages.Blocker
	next := view.Record.Stage + 1
	if next.Valid() {
		blockers, err = store.Move(ctx, view.Record.Epoch, next, false)
		if err != nil && !errors.Is(err, stages.ErrConflict) {
			return err
		}
	}
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(viewJSON(view, blockers))
	}
	return printView(env.stdout, view, blockers)
}

func viewJSON(view stages.View, blockers []stages.Blocker) stageJSON {
	r := view.Record
	doc := stageJSON{
		Namespace: r.Namespace, Stage: r.Stage.String(), Epoch: r.Epoch, Since: r.Since.UTC(), Patterns: r.Patterns,
		Dialect: r.Dialect, Shortest: r.Shortest.Milliseconds(), RestsOn: r.Note, Members: []memberJSON{}, BlockedBy: blockersJSON(blockers),
	}
	for _, m := range view.Members {
		row := memberJSON{
			ID: m.ID, Host: m.Info.Host, Process: m.Info.Process, Version: m.Info.Version, Epoch: m.Epoch,
			Lowest: m.Lowest.String(), Highest: m.Highest.String(),
			Seen: m.Seen.Milliseconds(), Left: m.Left.Milliseconds(), Skew: m.Skew.Milliseconds(),
		}
		if m.Stage.Valid() {
			row.Stage = m.Stage.String()
		}
		doc.Members = append(doc.Members, row)
	}
	return doc
}

func printView(w io.Writer, view stages.View, blockers []stages.Blocker) error {
	r := view.Record
	var b strings.Builder
	fmt.Fprintf(&b, "namespace  %s\nstage      %v, epoch %d, for %s\nkeys       %s\ndialect    %s, shortest lease %v\n\n",
		r.Namespace, r.Stage, r.Epoch, short(view.Now.Sub(r.Since)), terminal.Safe(strings.Join(r.Patterns, " ")), r.Dialect, r.Shortest)
	if r.Note != "" {
		fmt.Fprintf(&b, "rests on   %s\n\n", terminal.Safe(r.Note))
	}
	if len(view.Members) == 0 {
		b.WriteString("no members\n")
	} else {
		table := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "MEMBER\tHOST\tVERSION\tEPOCH\tSTAGE\tIN USE\tSEEN\tCLOCK")
		for _, m := range view.Members {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%+dms\n", terminal.Safe(m.ID), terminal.Safe(m.Info.Host),
				terminal.Safe(orDash(m.Info.Version)), memberEpoch(m), memberStage(m), inUse(m), seen(m), m.Skew.Milliseconds())
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, blocker := range blockers {
		fmt.Fprintf(&b, "\nin the way of %v: %s", r.Stage+1, terminal.Safe(blocker.String()))
	}
	if len(blockers) > 0 {
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func memberEpoch(m stages.Member) string {
	if m.Epoch < 0 {
		return "-"
	}
	return fmt.Sprint(m.Epoch)
}

func memberStage(m stages.Member) string {
	if !m.Stage.Valid() {
		return "joining"
	}
	return m.Stage.String()
}

func inUse(m stages.Member) string {
	if m.Lowest == m.Highest {
		return m.Lowest.String()
	}
	return m.Lowest.String() + ".." + m.Highest.String()
}

func seen(m stages.Member) string {
	if m.Left < 0 {
		return short(m.Seen) + " ago, SILENT"
	}
	return short(m.Seen) + " ago"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
