package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

func newStageSetCommand(env *environment, flags *stageFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set [flags]",
		Short: "Correct its keys, dialect and times",
		RunE:  onStore(env, flags, (*place).set),
	}
	describeFlags(cmd, flags)
	epochFlag(cmd.Flags(), flags)
	return cmd
}

func (at *place) set(ctx context.Context) error {
	flags := at.flags
	view, err := at.store.Show(ctx)
	if err != nil {
		return err
	}
	from, to := view.Record, view.Record
	if from.Handover != nil {
		return usageError(fmt.Sprintf(`"lockmigrate next --namespace %s" leads it on`, from.Namespace),
			"namespace %s is a handover from one lock to another: stage set is about old clients", from.Namespace)
	}
	if err := at.wanted(from); err != nil {
		return err
	}
	if len(flags.match) > 0 {
		to.Patterns = flags.match
	}
	to.Dialect = cmp.Or(flags.dialect, to.Dialect)
	for _, figure := range stages.Figures {
		if flags.given(figure.Flag()) { // 0s too: it takes a figure back
			*figure.Of(&to) = *figure.Of(&flags.figures)
		}
	}
	if to, err = checkedRecord(to); err != nil {
		return err
	}
	changes := changed(from, to)
	if len(changes) == 0 {
		at.env.note("namespace %s is so already", at.store.Namespace)
		return at.show(ctx)
	}
	if from.Stage == stages.Modern && stages.Widens(from, to) {
		return unsafeError("roll back to bridge first, or give these keys a namespace of their own", "at stage modern no pattern can be added: nobody has looked for legacy clients on its keys")
	}
	seen, err := at.look(ctx, to.Patterns)
	if err != nil {
		return err
	}
	refused := at.forceable(seen.speak(to.Dialect))
	what := fmt.Sprintf("change namespace %s, stage %v, epoch %d to %d: %s", at.store.Namespace, from.Stage, from.Epoch, from.Epoch+1, strings.Join(changes, ", "))
	blockers, err := at.store.Set(ctx, from.Epoch, from, to, false)
	if err != nil {
		return err
	}
	refused = cmp.Or(refused, unlessAlone(blockers, nil))
	return at.carryOut(plan{what: what, record: from, seen: seen, blockers: blockers, by: "in the way", refused: refused}, func() error {
		to.Note = flags.forced()
		if err := unlessAlone(at.store.Set(ctx, from.Epoch, from, to, true)); err != nil {
			return err
		}
		return made(at.show(ctx))
	})
}

// changed says what differs between two records.
func changed(from, to stages.Record) (changes []string) {
	if stages.Narrows(from, to) || stages.Widens(from, to) {
		changes = append(changes, fmt.Sprintf("keys %s (now %s)", shownPatterns(to.Patterns), shownPatterns(from.Patterns)))
	}
	if from.Dialect != to.Dialect {
		changes = append(changes, fmt.Sprintf("dialect %s (now %s)", to.Dialect, from.Dialect))
	}
	for _, f := range stages.Figures {
		if was, is := *f.Of(&from), *f.Of(&to); was != is {
			changes = append(changes, fmt.Sprintf("%s %s (now %s)", f.Name, orNotGiven(is), orNotGiven(was)))
		}
	}
	return changes
}

func orNotGiven(d time.Duration) string {
	if d == 0 {
		return "not given"
	}
	return d.String()
}

// knownClients says what a record knows of the old clients.
func knownClients(r stages.Record) string {
	if r.Handover != nil {
		return fmt.Sprintf("members of package handover, and sidecars; from %v to %v", r.Handover.Old, r.Handover.New)
	}
	text := "dialect " + r.Dialect
	for _, f := range stages.Figures {
		if d := *f.Of(&r); d > 0 {
			text += fmt.Sprintf(", %s %v", f.Name, d)
		}
	}
	return text
}

// unlessAlone refuses what no member may see, after an attempt that has found who is in the way, or an error.
func unlessAlone(blockers []stages.Blocker, err error) error {
	if err != nil || len(blockers) == 0 {
		return err
	}
	return unsafeError("stop the services, wait until the silent ones have run out, and run it again", "members are in the way: %s", blocked(blockers))
}

func newStageDeleteCommand(env *environment, flags *stageFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete [flags]",
		Short: "Remove the record of a namespace that has no members",
		RunE:  onStore(env, flags, (*place).delete),
	}
	f := cmd.Flags()
	epochFlag(f, flags)
	executeFlag(f, &flags.execute, "write")
	return cmd
}

// delete removes a record, or gives up the keys of a namespace without one, as an init leaves them that was stopped.
func (at *place) delete(ctx context.Context) error {
	view, err := at.store.Show(ctx)
	r, lost := view.Record, view.Lost()
	p := plan{record: r, by: "in the way"}
	switch {
	case errors.Is(err, stages.ErrNoRecord) && lost != nil:
		return failedError("wait for them, and run it again", "namespace %s: %w", at.store.Namespace, lost)
	case errors.Is(err, stages.ErrNoRecord):
		reserved, _, failed := at.store.Kept(ctx)
		if failed != nil || len(reserved) == 0 {
			return cmp.Or(failed, err)
		}
		p.what = fmt.Sprintf("free the keys %s, which are reserved for namespace %s, and have no record", shownPatterns(reserved), at.store.Namespace)
	case err != nil:
		return err
	default:
		if err := at.wanted(r); err != nil {
			return err
		}
		if p.blockers, err = at.store.Delete(ctx, r.Epoch, false); err != nil {
			return err
		}
		p.refused = unlessAlone(p.blockers, nil)
		p.what = fmt.Sprintf("delete namespace %s, stage %v, epoch %d: keys %s are free for another namespace, what stands on them stays", at.store.Namespace, r.Stage, r.Epoch, shownPatterns(r.Patterns))
	}
	return at.carryOut(p, func() error {
		if err := unlessAlone(at.store.Delete(ctx, r.Epoch, true)); err != nil {
			return err
		}
		return at.env.print(map[string]any{"namespace": at.store.Namespace, "deleted": true}, func(b *strings.Builder) {
			fmt.Fprintf(b, "namespace %s is deleted\n", at.store.Namespace)
		})
	})
}
