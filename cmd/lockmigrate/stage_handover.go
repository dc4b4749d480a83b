package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lockmigrate/lockmigrate"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// initHandover creates the record of a handover. It writes a random mark on each server of a half that is a lock of this module: members read the marks,
// and acquire nothing where theirs are others.
func (at *place) initHandover(ctx context.Context) error {
	flags := at.flags
	for _, flag := range []string{"dialect", "shortest-lease", "clock-lag", "command-delay", "yield", "longest-silence", "profile", "stage", "force"} {
		if flags.given(flag) {
			return usageError("leave it out", "--%s has no part in a handover", flag)
		}
	}
	if err := stages.CheckPatterns(flags.match); err != nil {
		return usageError("give --match 'lock.order.*', once for each pattern", "%w", err)
	}
	if flags.old == "" {
		return usageError("give --old URL for a lock of this module, --old NAME for any other", "a handover needs its Old")
	}
	oldName := ""
	if !strings.Contains(flags.old, "://") {
		oldName = flags.old
	}
	if err := at.room(ctx, flags.match); err != nil {
		return err
	}
	var old, new lockmigrate.Pool // of a half that is known by its server
	from, to := strconv.Quote(oldName), strconv.Quote(flags.newName)
	if flags.newName == "" {
		new, to = at.store.Pool, "this server"
	}
	if oldName == "" {
		end, stop, err := at.env.endpointOf(flags.old)
		if err != nil {
			return err
		}
		defer stop()
		pool, err := end.Locks()
		if err != nil {
			return err
		}
		defer pool.Close()
		old, from = pool, "the server of --old"
		if _, err := stages.ReadMark(ctx, old, at.store.Namespace, stageReplyTimeout); err != nil { // a plan for a server that cannot be reached is none
			return fmt.Errorf("--old: %w", endpoint.Explain(err))
		}
	}
	halves := &stages.Halves{Old: stages.Half{Name: oldName}, New: stages.Half{Name: flags.newName}}
	record := stages.Record{Namespace: at.store.Namespace, Stage: stages.Old, Patterns: flags.match, Handover: halves}
	p := plan{
		what:   fmt.Sprintf("create handover %s at stage old: keys %s, from %s to %s", at.store.Namespace, shownPatterns(flags.match), from, to),
		record: record,
		know:   []string{"a key " + stages.MarkKey(at.store.Namespace) + " is written on each server of a lock of this module: members know by it that they have the same halves"},
	}
	return at.carryOut(p, func() error {
		marked, err := stages.Marked(ctx, at.store.Namespace, stageReplyTimeout, old, new)
		if err != nil {
			return err
		}
		halves.Old.Mark, halves.New.Mark = marked.Old.Mark, marked.New.Mark
		if err := at.store.Init(ctx, record); err != nil {
			return err
		}
		return made(at.show(ctx))
	})
}
