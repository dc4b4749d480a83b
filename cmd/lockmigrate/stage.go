package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// stageFlags are the flags of stage and of those below it.
type stageFlags struct {
	namespace string
	execute   bool
	to        string
	epoch     int64
	evidence  string        // a file that verify wrote
	force     string        // why to go on without what is asked for
	wait      time.Duration // the most that --wait waits; 0: for ever

	match    []string
	dialect  string
	figures  stages.Record // its durations alone
	profile  string
	begin    stages.Stage
	handover bool   // the record is one of package handover
	old      string // its Old: a server's URL, or a name
	newName  string
	given    func(flag string) bool // it stands on the command line
}

// forced is what a record says of a step that was forced, empty if it was not.
func (f stageFlags) forced() string {
	if strings.TrimSpace(f.force) == "" {
		return ""
	}
	return "forced: " + f.force
}

func newStageCommand(env *environment) *cobra.Command {
	var flags stageFlags
	cmd := &cobra.Command{
		Use:   "stage [flags]",
		Short: "Show and change the stage of a namespace", SuggestFor: []string{"status", "show", "namespace", "namespaces", "advance", "rollback"},
		RunE: onStore(env, &flags, (*place).show),
	}
	cmd.PersistentFlags().StringVar(&flags.namespace, "namespace", "default", "`NAME` of the namespace")
	cmd.AddCommand(&cobra.Command{Use: "show [flags]", Short: "The same as stage alone", RunE: cmd.RunE, SuggestFor: []string{"status", "get", "info"}},
		newStageInitCommand(env, &flags),
		newStageMoveCommand(env, &flags, "advance", +1, "Move a namespace to the next stage, when no member is in the way"),
		newStageMoveCommand(env, &flags, "rollback", -1, "Move a namespace back to the stage before"),
		&cobra.Command{Use: "list", Short: "List the namespaces of a server or cluster", RunE: onStore(env, &flags, (*place).list)},
		&cobra.Command{Use: "history [flags]", Short: "Show who changed a namespace, when, from where and why", RunE: onStore(env, &flags, (*place).history)},
		newStageSetCommand(env, &flags), newStageDeleteCommand(env, &flags))
	return cmd
}

func newStageMoveCommand(env *environment, flags *stageFlags, name string, step stages.Stage, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " [flags]", Short: short,
		RunE: onStore(env, flags, func(at *place, ctx context.Context) error { return at.move(ctx, step) }),
	}
	f := cmd.Flags()
	if step > 0 {
		f.StringVar(&flags.evidence, "certificate", "", "the `FILE` that verify --out wrote in this epoch, not older than a day: modern wants it; the newest one in the working folder if not given")
		f.StringVar(&flags.force, "force", "", "go to modern without a certificate, or beside legacy values on the keys; to new of a handover: why nobody else locks by Old; the `REASON` is kept in the record")
	} else {
		f.StringVar(&flags.force, "force", "", "go to legacy although rules deny it SETNX or GETSET; the `REASON` is kept in the record")
	}
	choose(cmd, &flags.to, "to", "the `STAGE` to reach; nothing is done if it is reached already", "legacy", "bridge", "modern", "old", "both", "new")
	epochFlag(f, flags)
	f.DurationVar(&flags.wait, "wait", 0, "return when every member that lives runs the new stage; with a `DURATION`, as in --wait=5m, give up waiting then, with exit code 4")
	f.Lookup("wait").NoOptDefVal = "0s"
	executeFlag(f, &flags.execute, "write")
	return cmd
}

// executeFlag adds --execute, and --dry-run, which is what happens without it: an operator who types it by habit is not told that it does not exist.
func executeFlag(f *pflag.FlagSet, execute *bool, usage string) {
	f.BoolVar(execute, "execute", false, usage+"; without it the plan is printed and nothing is written")
	f.Bool("dry-run", false, "print the plan and write nothing: the default")
}

// nothingWritten is the last line of a plan.
func nothingWritten(flags string, refused error) string {
	if refused != nil {
		return "nothing was written; --execute would be refused\n"
	}
	return "nothing was written; add " + flags + "--execute to do it\n"
}

func epochFlag(f *pflag.FlagSet, flags *stageFlags) {
	f.Int64Var(&flags.epoch, "epoch", 0, "refuse unless the record is at epoch `N`")
}

// stageReplyTimeout bounds the wait for one reply.
const stageReplyTimeout = 5 * time.Second

func storeOf(pool lockmigrate.Pool, namespace string) *stages.Store {
	return &stages.Store{Pool: pool, Namespace: namespace, ReplyTimeout: stageReplyTimeout}
}

// place is where a command about a namespace works.
type place struct {
	env   *environment
	end   *endpoint.Endpoint
	store *stages.Store
	flags stageFlags
}

// onStore makes a command of work on the namespace that the flags name.
func onStore(env *environment, flags *stageFlags, work func(at *place, ctx context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error {
			pool, err := end.Locks()
			if err != nil {
				return err
			}
			defer pool.Close()
			store := storeOf(pool, flags.namespace)
			store.By = whoami(env)
			flags.given = func(name string) bool { return cmd.Flags().Changed(name) }
			at := &place{env, end, store, *flags}
			return at.explain(ctx, work(at, ctx))
		})(cmd, args)
	}
}

// whoami is who runs this, and where, for the history of a record.
func whoami(env *environment) string {
	name := cmp.Or(env.getenv("LOCKMIGRATE_BY"), env.getenv("SUDO_USER"), env.getenv("USER"), env.getenv("USERNAME"))
	if name == "" { // in a container, or by cron
		if u, err := user.Current(); err == nil {
			name = u.Username
		} else {
			name = fmt.Sprintf("uid %d", os.Getuid())
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return name + "@" + host
}

// wanted refuses a record at another epoch than --epoch says.
func (at *place) wanted(r stages.Record) error {
	if at.flags.epoch != 0 && at.flags.epoch != r.Epoch {
		return failedError(`look at it with "lockmigrate stage"`, "the record is at epoch %d, not %d", r.Epoch, at.flags.epoch)
	}
	return nil
}

// explain adds a hint to what a store finds.
func (at *place) explain(ctx context.Context, err error) error {
	var waited *stages.Waited
	switch {
	case err == nil || isOwnError(err):
		return err
	case errors.Is(err, stages.ErrNoRecord):
		return failedError(whichNamespace(ctx, at.store, `create it with "lockmigrate stage init", or name another with --namespace`), "%w", err)
	case errors.Is(err, stages.ErrOverlap):
		return unsafeError(`choose patterns that have no key in common; "lockmigrate stage list" shows all`, "%w", err)
	case errors.Is(err, stages.ErrBusy):
		return inconclusiveError("nothing was changed", "%w", err)
	case errors.Is(err, stages.ErrNewer):
		return failedError("install that build of lockmigrate; this one changes nothing of the namespace", "namespace %s: %w", at.store.Namespace, err)
	case errors.Is(err, stages.ErrGarbage):
		return failedError(fmt.Sprintf(`no member acquires by such a record; put back what %s and %s held; or stop its services, wait for their locks, delete both keys and run "lockmigrate stage init"`,
			stages.RecordKey("NAME"), stages.MembersKey("NAME")), "%w", err)
	case errors.Is(err, stages.ErrMade):
		return failedError(`"lockmigrate stage" shows what stands`, "%w", err)
	case errors.Is(err, stages.ErrConflict), errors.Is(err, stages.ErrExists):
		by := ""
		if view, failed := at.store.Show(ctx); failed == nil {
			by = lastChange(view.Record)
		}
		return failedError(`look at it with "lockmigrate stage" and decide again`, "%w%s", err, by)
	case errors.Is(err, stages.ErrNoNeighbour):
		return unsafeError("go there one stage at a time", "%w", err)
	case errors.As(err, &waited):
		return inconclusiveError("nothing was changed; run it again, now or later", "%w", err)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, stages.ErrUnsure):
		return failedError(`look at it with "lockmigrate stage" before you run it again`, "%w", err)
	default:
		return endpoint.Explain(err)
	}
}

// lastChange says who changed a record last, after a comma; empty where the record does not tell.
func lastChange(r stages.Record) string {
	if len(r.History) == 0 {
		return ""
	}
	c := r.History[len(r.History)-1]
	by := ""
	if c.By != "" {
		by = " by " + safe(c.By)
	}
	return fmt.Sprintf(",%s at %s", by, c.At.Format(time.RFC3339))
}

// whichNamespace is a hint for a store's namespace that does not exist. A user without the right to the list gets the hint alone.
func whichNamespace(ctx context.Context, store *stages.Store, hint string) string {
	names, _ := store.Names(ctx)
	if slices.Contains(names, store.Namespace) {
		return "its keys are reserved: a stage init or stage delete was stopped, or the record was lost; run that command again"
	}
	if len(names) > 0 {
		return "there are " + firstFew(names) + "; " + hint
	}
	return hint
}

// firstFew lists the first five of names.
func firstFew(names []string) string {
	if n := len(names) - 5; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), n)
	}
	return strings.Join(names, ", ")
}

// missing adds a hint to an error that says that no namespace has this name. as makes the error; other errors stay as they are.
func missing(ctx context.Context, end *endpoint.Endpoint, namespace string, err error, as func(hint, format string, args ...any) error, hint string) error {
	if !errors.Is(err, stages.ErrNoRecord) {
		return err
	}
	pool, failed := end.Locks()
	if failed != nil {
		return err
	}
	defer pool.Close()
	return as(whichNamespace(ctx, storeOf(pool, namespace), hint), "%w", err)
}

func (at *place) move(ctx context.Context, step stages.Stage) error {
	env, store, flags := at.env, at.store, at.flags
	view, err := store.Show(ctx)
	if err != nil {
		return err
	}
	from := view.Record.Stage
	to := from + step
	if flags.to != "" {
		if to, err = stages.Parse(flags.to); err != nil {
			return err
		}
		if (to >= stages.Old) != (from >= stages.Old) {
			return usageError(`"lockmigrate stage" shows the record`, "namespace %s is at %v: %v is no stage of its kind", store.Namespace, from, to)
		}
	}
	switch err := at.wanted(view.Record); {
	case err != nil && to != from:
		return err
	case to == from: // reached already: a command that is run again
		env.note("namespace %s is at %v already%s", store.Namespace, to, lastChange(view.Record))
		return at.follow(ctx, to)
	case !stages.Valid(to):
		return usageError("there is none beyond it", "namespace %s is at %v, the %s stage", store.Namespace, from, map[stages.Stage]string{+1: "last", -1: "first"}[step])
	case flags.execute && flags.to == "" && flags.epoch == 0: // run twice, or by two operators, it would make two steps
		return usageError(fmt.Sprintf("add --to %v", to), "--execute needs --to or --epoch; namespace %s is at %v", store.Namespace, from)
	case (to > from) != (step > 0):
		other := map[stages.Stage]string{+1: "rollback", -1: "advance"}[step]
		return usageError(fmt.Sprintf("\"lockmigrate stage %s --namespace %s --to %v\" goes there", other, store.Namespace, to), "%v lies in the other direction from %v", to, from)
	case to != from+step:
		return fmt.Errorf("move namespace %s from %v to %v: %w", store.Namespace, from, to, stages.ErrNoNeighbour)
	}
	looked := time.Now()
	note, refused := restsOn(env.now(), view.Record, to, flags)
	refused = both(refused, at.obstacles(ctx, view, to))
	blockers, err := store.Move(ctx, view.Record.Epoch, to, false)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("move namespace %s from %v to %v, epoch %d to %d", store.Namespace, from, to, view.Record.Epoch, view.Record.Epoch+1)
	p := plan{what: what, record: view.Record, know: whatToKnow[[2]stages.Stage{from, to}], blockers: blockers, by: "waits", refused: refused}
	if !flags.given("to") && !flags.given("epoch") {
		p.name = "--to " + to.String() + " "
	}
	return at.carryOut(p, func() error { return at.run(ctx, view.Record.Epoch, to, looked, note) })
}

// run moves the namespace when no member is in the way. Keys and rules were looked at before.
func (at *place) run(ctx context.Context, epoch int64, to stages.Stage, looked time.Time, note string) error {
	env, store, flags := at.env, at.store, at.flags
	if flags.wait > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, flags.wait, errors.New("gave up after --wait"))
		defer cancel()
		ctx = limited
	}
	status := env.status()
	last := ""
	mover := &stages.Mover{Store: store, Look: 250 * time.Millisecond, Epoch: epoch, Note: note}
	if flags.forced() == "" {
		mover.Before = func(ctx context.Context, view stages.View) error {
			if time.Since(looked) < freshLook {
				return nil
			}
			return at.obstacles(ctx, view, to)
		}
	}
	err := mover.Run(ctx, to, func(_ stages.View, blockers []stages.Blocker) {
		text := blocked(blockers)
		status.Update("%s", text)
		if why := who(blockers); why != last && !env.isTerminal(env.stderr) {
			last = why
			env.note("%s", text)
		}
	})
	status.Clear()
	if err != nil {
		return err
	}
	return made(at.follow(ctx, to))
}

// made says of an error that it came after a change. An error that chose its exit code says so itself.
func made(err error) error {
	if isOwnError(err) {
		return err
	}
	return stages.Made(endpoint.Explain(err))
}

// freshLook is for how long a look at keys and rules counts. A move that has waited for members for longer looks again.
const freshLook = 10 * time.Second

// follow shows the namespace after a move; with --wait, when every member that lives has changed over.
func (at *place) follow(ctx context.Context, to stages.Stage) error {
	store := at.store
	if at.flags.given("wait") && at.flags.execute {
		status := at.env.status()
		mover := &stages.Mover{Store: store, Look: 250 * time.Millisecond}
		err := mover.Follow(ctx, to, func(view stages.View) {
			status.Update("%s", changingOver(view))
		})
		status.Clear()
		var waited *stages.Waited
		if errors.As(err, &waited) {
			return inconclusiveError(`the move is made; see "lockmigrate stage" for who changes over`, "namespace %s is at %v: %w", store.Namespace, waited.To, err)
		}
		if err != nil {
			return err
		}
	}
	return at.show(context.WithoutCancel(ctx))
}

// changingOver says who does not run the present stage yet, and for how long at most; empty when all do.
func changingOver(view stages.View) string {
	late, atMost := view.ChangingOver()
	if len(late) == 0 {
		return ""
	}
	var names []string
	for _, m := range late {
		names = append(names, safe(m.ID))
	}
	return fmt.Sprintf("%d of %d members change over with their next report, within %s: %s", len(late), len(view.Members), short(atMost), firstFew(names))
}

// both is one refusal of two.
func both(a, b error) error {
	if a == nil || b == nil || !isOwnError(a) || !isOwnError(b) {
		return cmp.Or(a, b)
	}
	return &exitError{exitCode(a), fmt.Errorf("%w (%s); %w", a, hintOf(a), b), hintOf(b)}
}

// obstacles looks at the server for what forbids a move, apart from the members: legacy values that nobody would
// take over at modern, rules that keep members from locking at legacy. With --force it only says them.
func (at *place) obstacles(ctx context.Context, view stages.View, to stages.Stage) error {
	var refused error
	switch {
	case to == stages.Modern:
		seen, err := at.look(ctx, view.Record.Patterns)
		if err != nil {
			return err
		}
		for _, note := range seen.besides() {
			at.env.note("%s", note)
		}
		refused = seen.modernCan(view.Record.Patterns)
	case to == stages.Legacy:
		unknown, err := unfenced(ctx, at.end, view)
		for _, u := range unknown {
			at.env.note("%s", safe(u))
		}
		refused = err
	}
	return at.forceable(refused)
}

// whatToKnow are the consequences of a move, from one stage to another, that nobody can see from its name.
var whatToKnow = map[[2]stages.Stage][]string{
	{stages.Legacy, stages.Bridge}: {bridgeCosts},
	{stages.Bridge, stages.Modern}: {"from then on nobody takes over what a forgotten legacy client leaves; \"lockmigrate sweep\" removes it"},
	{stages.Modern, stages.Bridge}: {"forward to modern again needs a new certificate: the old one speaks for an epoch that is over"},
	{stages.Bridge, stages.Legacy}: {"Go services send SETNX and GETSET again, and are as weak against moved clocks as the old clients"},
	{stages.Old, stages.Both}:      {bothCost},
	{stages.New, stages.Both}:      {bothCost},
	{stages.Both, stages.New}:      {"from then on a process that locks by Old alone is kept out by nobody", "rollback to both, and to old, is open"},
}

const bothCost = "each lock costs both halves until the next step; neighbours exclude each other, and rollback is open"

// bridgeCosts is what the old clients pay for the bridge; TestWhatTheBridgeCosts measured the figures of docs/runbook.md.
const bridgeCosts = "on keys that Go and old clients both wait for, bridge holders leave gaps for the old ones: these keep about the turns and waits that they had (docs/runbook.md, step 3); they must look more often than --yield says"

func blocked(blockers []stages.Blocker) string {
	text := "waiting: " + safe(blockers[0].String())
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
