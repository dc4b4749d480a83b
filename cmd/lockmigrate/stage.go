package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// stageFlags are the flags of stage and of those below it.
type stageFlags struct {
	namespace string
	execute   bool
	to        string
	epoch     int64
	timeout   time.Duration
	evidence  string // a file that verify wrote
	force     string // why to go on without what is asked for
	wait      bool   // until every member has changed over

	match    []string
	dialect  string
	shortest time.Duration
	lag      time.Duration
	delay    time.Duration
	yield    time.Duration
	profile  string
	begin    string
}

func newStageCommand(env *environment) *cobra.Command {
	var flags stageFlags
	cmd := &cobra.Command{
		Use:   "stage [flags]",
		Short: "Show and change the stage of a namespace: legacy, bridge, modern",
		Long: `stage shows which stage a namespace is at, and every service that is a member
of it: which epoch it runs, when it reported last, and how far its clock is
from the server's. A member that cannot run the namespace says why.

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
  lockmigrate stage rollback --namespace orders --execute
  lockmigrate stage list`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, flags, func(ctx context.Context, at *place) error {
				return showStage(ctx, env, at.store)
			})
		},
	}
	cmd.PersistentFlags().StringVar(&flags.namespace, "namespace", "default", "`NAME` of the namespace")
	cmd.AddCommand(newStageInitCommand(env, &flags),
		newStageMoveCommand(env, &flags, "advance", +1, "Move a namespace to the next stage, when no member is in the way"),
		newStageMoveCommand(env, &flags, "rollback", -1, "Move a namespace back to the stage before"),
		newStageListCommand(env, &flags), newStageHistoryCommand(env, &flags), newStageSetCommand(env, &flags), newStageDeleteCommand(env, &flags))
	return cmd
}

func newStageMoveCommand(env *environment, flags *stageFlags, name string, step stages.Stage, short string) *cobra.Command {
	long := `advance moves a namespace one stage on: legacy to bridge, bridge to modern. It waits until every live member runs the present epoch and silent members have run out. It names the members that it waits for.

Name the stage with --to: then running the command twice is running it once.
The record knows its members only. Before modern, "lockmigrate verify" must have found that no legacy client is left outside of the members. No legacy value may stand on the keys: at modern nobody takes it over.

After the move members change over with their next report. --wait returns when
all have. Without --execute nothing is written; exit code 3 says that
--execute would be refused.`
	if step < 0 {
		long = `rollback moves a namespace one stage back: modern to bridge, bridge to legacy.
A step that members have not taken yet, or only some of them, is undone at
once; it waits only for what is two stages away from where it leads.

Back to legacy it is refused while ACL rules deny SETNX or GETSET to a member's user (see "lockmigrate fence"): the Go services could
acquire nothing. Forward to modern again needs a new certificate.`
	}
	cmd := &cobra.Command{
		Use: name + " [flags]", Short: short, Long: long,
		Example: "  lockmigrate stage " + name + " --namespace orders --execute",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withStore(cmd.Context(), env, *flags, func(ctx context.Context, at *place) error {
				return moveStage(ctx, env, at, *flags, step)
			})
		},
	}
	f := cmd.Flags()
	if step > 0 {
		f.StringVar(&flags.evidence, "certificate", "", "the `FILE` that verify --out wrote in this epoch, not older than a day: modern wants it; the newest one in the working folder if not given")
		f.StringVar(&flags.force, "force", "", "go to modern without a certificate, or beside legacy values on the keys; the `REASON` is kept in the record")
	} else {
		f.StringVar(&flags.force, "force", "", "go to legacy although rules deny it SETNX or GETSET; the `REASON` is kept in the record")
	}
	f.StringVar(&flags.to, "to", "", "the `STAGE` to reach; nothing is done if it is reached already")
	f.Int64Var(&flags.epoch, "epoch", 0, "refuse unless the record is at epoch `N`")
	f.DurationVar(&flags.timeout, "timeout", 0, "give up waiting after this `DURATION`, exit code 4; 0 waits for ever")
	f.BoolVar(&flags.wait, "wait", false, "return when every member that lives runs the new stage")
	f.BoolVar(&flags.execute, "execute", false, "write; without it the plan is printed and nothing is written")
	return cmd
}

// stageReplyTimeout bounds the wait for one reply.
const stageReplyTimeout = 5 * time.Second

// place is where a command about a namespace works.
type place struct {
	end   *endpoint.Endpoint
	store *stages.Store
}

// withStore opens the namespace's store for the time of a command.
func withStore(ctx context.Context, env *environment, flags stageFlags, run func(context.Context, *place) error) error {
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
	store := &stages.Store{Pool: pool, Namespace: flags.namespace, ReplyTimeout: stageReplyTimeout, By: whoami(env)}
	return explainStage(run(ctx, &place{end, store}))
}

// whoami is who runs this, and where, for the history of a record.
func whoami(env *environment) string {
	name := cmp.Or(env.getenv("LOCKMIGRATE_BY"), env.getenv("SUDO_USER"), env.getenv("USER"), env.getenv("USERNAME"), "somebody")
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return name + "@" + host
}

// explainStage adds a hint to what a store finds.
func explainStage(err error) error {
	var waited *stages.Waited
	switch {
	case err == nil || isOwnError(err):
		return err
	case errors.Is(err, stages.ErrNoRecord):
		return failedError(`create it with "lockmigrate stage init", or name another with --namespace`, "%w", err)
	case errors.Is(err, stages.ErrOverlap):
		return unsafeError(`choose patterns that have no key in common; "lockmigrate stage list" shows all`, "%w", err)
	case errors.Is(err, stages.ErrBusy):
		return inconclusiveError("nothing was changed", "%w", err)
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

func moveStage(ctx context.Context, env *environment, at *place, flags stageFlags, step stages.Stage) error {
	store := at.store
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
		env.note("namespace %s is at %v already", store.Namespace, to)
		return followStage(ctx, env, store, flags)
	case !stages.Valid(to):
		return usageError("there is none beyond it", "namespace %s is at %v, the %s stage", store.Namespace, from, map[stages.Stage]string{+1: "last", -1: "first"}[step])
	case (to > from) != (step > 0):
		return usageError("use the other of advance and rollback", "%v lies in the other direction from %v", to, from)
	}
	looked := time.Now()
	note, refused := restsOn(env.now(), view.Record, to, flags)
	refused = both(refused, obstacles(ctx, env, at, view, to, flags))
	if !flags.execute {
		if err := planMove(ctx, env, store, view, to, refused); err != nil {
			return err
		}
		return refused
	}
	if refused != nil {
		return refused
	}
	if note == "" && strings.TrimSpace(flags.force) != "" {
		note = "forced: " + flags.force
	}
	if flags.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, flags.timeout, errors.New("gave up after --timeout"))
		defer cancel()
		ctx = limited
	}
	status := env.status()
	last := ""
	mover := &stages.Mover{Store: store, Look: 250 * time.Millisecond, Epoch: view.Record.Epoch, Note: note}
	if strings.TrimSpace(flags.force) == "" {
		mover.Before = func(ctx context.Context, view stages.View) error {
			if time.Since(looked) < freshLook {
				return nil
			}
			return obstacles(ctx, env, at, view, to, flags)
		}
	}
	err = mover.Run(ctx, to, func(_ stages.View, blockers []stages.Blocker) {
		text := blocked(blockers)
		status.Update(func() string { return text })
		if why := who(blockers); why != last && !env.isTerminal(env.stderr) {
			last = why
			env.note("%s", text)
		}
	})
	status.Clear()
	if err != nil {
		return err
	}
	return followStage(ctx, env, store, flags)
}

// freshLook is for how long a look at keys and rules counts. A move that has waited for members for longer looks again.
const freshLook = 10 * time.Second

// followStage shows the namespace after a move; with --wait, when every member that lives has changed over.
func followStage(ctx context.Context, env *environment, store *stages.Store, flags stageFlags) error {
	if flags.wait && flags.execute {
		status := env.status()
		mover := &stages.Mover{Store: store, Look: 250 * time.Millisecond}
		err := mover.Follow(ctx, func(view stages.View) {
			text := changingOver(view)
			status.Update(func() string { return text })
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
	return showStage(context.WithoutCancel(ctx), env, store)
}

// changingOver says who does not run the present stage yet, and for how long at most; empty when all do.
func changingOver(view stages.View) string {
	late, atMost := view.ChangingOver()
	if len(late) == 0 {
		return ""
	}
	var names []string
	for _, m := range late[:min(3, len(late))] {
		names = append(names, terminal.Safe(m.ID))
	}
	if n := len(late) - len(names); n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("%d of %d members change over with their next report, within %s: %s", len(late), len(view.Members), short(atMost), strings.Join(names, ", "))
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
func obstacles(ctx context.Context, env *environment, at *place, view stages.View, to stages.Stage, flags stageFlags) error {
	var refused error
	switch {
	case to == stages.Modern:
		seen, err := lookAt(ctx, env, at.end, view.Record.Patterns)
		if err != nil {
			return err
		}
		for _, note := range seen.besides() {
			env.note("%s", note)
		}
		refused = seen.modernCan(view.Record.Patterns)
	case to == stages.Legacy:
		unknown, err := unfenced(ctx, at.end, view)
		for _, u := range unknown {
			env.note("%s", terminal.Safe(u))
		}
		refused = err
	}
	return forceable(env, refused, flags.force)
}

// planMove says what a move would do, what it costs, who is in the way at the moment, and why it would be refused.
func planMove(ctx context.Context, env *environment, store *stages.Store, view stages.View, to stages.Stage, refused error) error {
	blockers, err := store.Move(ctx, view.Record.Epoch, to, false)
	if err != nil {
		return err
	}
	plan := fmt.Sprintf("move namespace %s from %v to %v, epoch %d to %d", store.Namespace, view.Record.Stage, to, view.Record.Epoch, view.Record.Epoch+1)
	if env.global.json {
		doc := map[string]any{
			"plan": plan, "executed": false, "namespace": store.Namespace, "stage": view.Record.Stage.String(),
			"epoch": view.Record.Epoch, "blocked_by": blockersJSON(blockers), "know": whatToKnow(view.Record.Stage, to),
		}
		if refused != nil {
			doc["refused"], doc["hint"] = refused.Error(), hintOf(refused)
		}
		return json.NewEncoder(env.stdout).Encode(doc)
	}
	text := fmt.Sprintf("plan: %s\n", plan)
	for _, know := range whatToKnow(view.Record.Stage, to) {
		text += fmt.Sprintf("know: %s\n", know)
	}
	for _, b := range blockers {
		text += fmt.Sprintf("waits: %s\n", terminal.Safe(b.String()))
	}
	if err := env.show(text); err != nil {
		return err
	}
	if refused != nil {
		fmt.Fprintf(env.stdout, "first: %s: %s\n", terminal.Safe(refused.Error()), terminal.Safe(hintOf(refused)))
		return nil
	}
	env.note("nothing was written; add --execute to do it")
	return nil
}

// whatToKnow are the consequences of a move that nobody can see from its name.
func whatToKnow(from, to stages.Stage) []string {
	switch {
	case from == stages.Legacy && to == stages.Bridge:
		return []string{bridgeCosts}
	case from == stages.Modern && to == stages.Bridge:
		return []string{"forward to modern again needs a new certificate: the old one speaks for an epoch that is over"}
	case from == stages.Bridge && to == stages.Legacy:
		return []string{"Go services send SETNX and GETSET again, and are as weak against moved clocks as the old clients"}
	case to == stages.Modern:
		return []string{"from then on nobody takes over what a forgotten legacy client leaves; \"lockmigrate sweep\" removes it"}
	}
	return nil
}

// bridgeCosts is what the old clients pay for the bridge; TestWhatTheBridgeCosts measured the figures of docs/runbook.md.
const bridgeCosts = "on keys that Go and old clients both wait for, bridge holders leave gaps for the old ones: these keep about the turns and waits that they had (docs/runbook.md, step 3); they must look more often than --yield says"

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
	Lag       int64         `json:"clock_lag_ms"`       // 0: the members' own
	Delay     int64         `json:"command_delay_ms"`   // the same
	Yield     int64         `json:"yield_ms"`           // the same
	RestsOn   string        `json:"rests_on,omitempty"` // a certificate, or why it was forced
	Members   []memberJSON  `json:"members"`
	BlockedBy []blockerJSON `json:"blocked_by"`       // of the next advance
	Changing  []string      `json:"changing_over"`    // members that live and do not run the stage yet
	AtMost    int64         `json:"changing_over_ms"` // for how long at most they may act in the stage before
}

type memberJSON struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	Process int    `json:"pid"`
	Epoch   int64  `json:"epoch"` // -1: none yet
	Stage   string `json:"stage"` // empty: none yet
	Lowest  string `json:"lowest_stage_in_use"`
	Highest string `json:"highest_stage_in_use"`
	Seen    int64  `json:"seen_ms_ago"`
	Left    int64  `json:"lease_left_ms"` // negative: silent
	Skew    int64  `json:"skew_ms"`       // positive: ahead of the server
	User    string `json:"user,omitempty"`

	Build  stages.Build `json:"build,omitzero"`   // which program, in which version
	Misfit string       `json:"misfit,omitempty"` // why it cannot run the namespace
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
	if stages.Valid(next) {
		blockers, err = store.Move(ctx, view.Record.Epoch, next, false)
		if err != nil && !errors.Is(err, stages.ErrConflict) {
			return err
		}
	}
	if env.global.json {
		return json.NewEncoder(env.stdout).Encode(viewJSON(view, blockers))
	}
	return printView(env, view, blockers)
}

func viewJSON(view stages.View, blockers []stages.Blocker) stageJSON {
	r := view.Record
	doc := stageJSON{
		Namespace: r.Namespace, Stage: r.Stage.String(), Epoch: r.Epoch, Since: r.Since.UTC(), Patterns: slices.Clone(r.Patterns), Changing: []string{},
		Dialect: r.Dialect, Shortest: r.Shortest.Milliseconds(), Lag: r.ClockLag.Milliseconds(), Delay: r.CommandDelay.Milliseconds(), Yield: r.Yield.Milliseconds(), RestsOn: r.Note, Members: []memberJSON{}, BlockedBy: blockersJSON(blockers),
	}
	late, atMost := view.ChangingOver()
	for _, m := range late {
		doc.Changing = append(doc.Changing, m.ID)
	}
	doc.AtMost = atMost.Milliseconds()
	for i, p := range doc.Patterns {
		doc.Patterns[i] = stages.Escape(p)
	}
	for _, m := range view.Members {
		row := memberJSON{
			ID: m.ID, Host: m.Info.Host, Process: m.Info.Process, Epoch: m.Epoch,
			Lowest: m.Lowest.String(), Highest: m.Highest.String(),
			Seen: m.Seen.Milliseconds(), Left: m.Left.Milliseconds(), Skew: m.Skew.Milliseconds(),
			User: m.Info.User, Build: m.Info.Build, Misfit: m.Misfit,
		}
		if stages.Valid(m.Stage) {
			row.Stage = m.Stage.String()
		}
		doc.Members = append(doc.Members, row)
	}
	return doc
}

func printView(env *environment, view stages.View, blockers []stages.Blocker) error {
	r := view.Record
	var b strings.Builder
	fmt.Fprintf(&b, "namespace  %s\nstage      %v, epoch %d, for %s\nkeys       %s\nclients    %s\n\n",
		r.Namespace, r.Stage, r.Epoch, short(view.Now.Sub(r.Since)), shownPatterns(r.Patterns), knownClients(r))
	if r.Note != "" {
		fmt.Fprintf(&b, "rests on   %s\n\n", terminal.Safe(r.Note))
	}
	if len(view.Members) == 0 {
		b.WriteString("no members\n")
	} else {
		ink := env.ink()
		t := terminal.NewTable(terminal.Column{Head: "MEMBER", Wrap: true}, terminal.Column{Head: "HOST", Wrap: true, Spare: true}, terminal.Column{Head: "EPOCH", Right: true}, terminal.Column{Head: "STAGE"},
			terminal.Column{Head: "IN USE"}, terminal.Column{Head: "SEEN", Wrap: true}, terminal.Column{Head: "CLOCK", Right: true}, terminal.Column{Head: "BUILD", Spare: true})
		for _, m := range view.Members {
			stage, last := memberStage(m), seen(m)
			if m.Misfit != "" {
				stage = ink.Bad(stage)
			}
			if m.Left < 0 {
				last = ink.Warn(last)
			}
			t.Row(terminal.Safe(m.ID), terminal.Safe(m.Info.Host), memberEpoch(m), stage, inUse(m), last, fmt.Sprintf("%+d ms", m.Skew.Milliseconds()), terminal.Safe(m.Info.Build.String()))
		}
		b.WriteString(t.Render(env.screen(), ink))
	}
	for _, m := range view.Members {
		if m.Misfit != "" && m.Lives() {
			fmt.Fprintf(&b, "\n%s acquires nothing: %s\n", terminal.Safe(m.ID), terminal.Safe(m.Misfit))
		}
	}
	late, _ := view.ChangingOver()
	if text := changingOver(view); text != "" {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	for _, blocker := range blockers {
		changes := slices.ContainsFunc(late, func(m stages.Member) bool { return m.ID == blocker.Member })
		if blocker.Why == "misfit" || blocker.Why == "behind" && changes {
			continue // it has been said
		}
		fmt.Fprintf(&b, "\n%v will wait: %s\n", r.Stage+1, terminal.Safe(blocker.String()))
	}
	return env.show(b.String())
}

func memberEpoch(m stages.Member) string {
	if m.Epoch < 0 {
		return "-"
	}
	return fmt.Sprint(m.Epoch)
}

func memberStage(m stages.Member) string {
	switch {
	case m.Misfit != "":
		return "UNFIT"
	case !stages.Valid(m.Stage):
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
