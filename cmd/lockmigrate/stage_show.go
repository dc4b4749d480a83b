package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// show prints the record, its members, and what is in the way of the next stage.
func (at *place) show(ctx context.Context) error {
	view, err := at.store.Show(ctx)
	if err != nil {
		return err
	}
	var blockers []stages.Blocker
	next := view.Record.Stage + 1
	if stages.Valid(next) {
		blockers, err = at.store.Move(ctx, view.Record.Epoch, next, false)
		if err != nil && !errors.Is(err, stages.ErrConflict) {
			return err
		}
	}
	return at.env.print(view.Document(blockers), func(b *strings.Builder) { at.env.view(b, view, blockers) })
}

func (env *environment) view(b *strings.Builder, view stages.View, blockers []stages.Blocker) {
	r := view.Record
	fmt.Fprintf(b, "namespace  %s\nstage      %v, epoch %d, for %s\nkeys       %s\nclients    %s\n\n",
		r.Namespace, r.Stage, r.Epoch, short(view.Now.Sub(r.Since)), shownPatterns(r.Patterns), knownClients(r))
	if r.Note != "" {
		fmt.Fprintf(b, "rests on   %s\n\n", safe(r.Note))
	}
	if len(view.Members) == 0 {
		b.WriteString("no members\n")
	} else {
		ink := env.ink()
		t := newTable("MEMBER|wrap", "HOST|wrap spare", "EPOCH|right", "STAGE", "IN USE", "SEEN|wrap", "CLOCK|right", "BUILD|spare")
		for _, m := range view.Members {
			stage, epoch, last := m.Stage.String(), fmt.Sprint(m.Epoch), short(m.Seen)+" ago"
			switch {
			case m.Misfit != "":
				stage = ink.Bad("UNFIT")
			case !stages.Valid(m.Stage):
				stage = "joining"
			}
			if m.Epoch < 0 {
				epoch = "-"
			}
			if m.Left < 0 {
				last = ink.Warn(last + ", SILENT")
			}
			t.Row(safe(m.ID), safe(m.Info.Host), epoch, stage, inUse(m), last, fmt.Sprintf("%+d ms", m.Skew.Milliseconds()), safe(m.Info.Build.String()))
		}
		b.WriteString(t.Render(env.screen(), ink))
	}
	for _, m := range view.Living() {
		if m.Misfit != "" {
			fmt.Fprintf(b, "\n%s acquires nothing: %s\n", safe(m.ID), safe(m.Misfit))
		}
		if m.Info.Note != "" {
			fmt.Fprintf(b, "\n%s %s\n", safe(m.ID), safe(m.Info.Note))
		}
	}
	late, _ := view.ChangingOver()
	if text := changingOver(view); text != "" {
		fmt.Fprintf(b, "\n%s\n", text)
	}
	for _, blocker := range blockers {
		changes := slices.ContainsFunc(late, func(m stages.Member) bool { return m.ID == blocker.Member })
		if blocker.Why == "misfit" || blocker.Why == "behind" && changes {
			continue // it has been said
		}
		fmt.Fprintf(b, "\n%v will wait: %s\n", r.Stage+1, safe(blocker.String()))
	}
}

func inUse(m stages.Member) string {
	if m.Lowest == m.Highest {
		return m.Lowest.String()
	}
	return m.Lowest.String() + ".." + m.Highest.String()
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

func (at *place) list(ctx context.Context) error {
	all, err := at.store.List(ctx)
	if err != nil {
		return err
	}
	rows := []listedJSON{}
	for _, one := range all {
		r := one.View.Record
		row := listedJSON{Namespace: one.Name, Stage: "reserved", Patterns: stages.EscapeAll(one.Reserved)}
		if stages.Unreadable(one.Unknown) {
			row.Stage = "unreadable"
		}
		if one.Unknown == nil {
			row.Stage, row.Epoch, row.Members, row.Dialect, row.Patterns = r.Stage.String(), r.Epoch, len(one.View.Living()), r.Dialect, stages.EscapeAll(r.Patterns)
		}
		rows = append(rows, row)
	}
	return at.env.print(map[string]any{"namespaces": rows}, func(b *strings.Builder) {
		if len(rows) == 0 {
			b.WriteString("no namespaces\n")
			return
		}
		t := newTable("NAMESPACE", "STAGE", "EPOCH|right", "MEMBERS|right", "DIALECT", "KEYS|wrap")
		for _, r := range rows {
			t.Row(safe(r.Namespace), r.Stage, fmt.Sprint(r.Epoch), fmt.Sprint(r.Members), cmp.Or(r.Dialect, "-"), safe(strings.Join(r.Patterns, " ")))
		}
		b.WriteString(t.Render(at.env.screen(), at.env.ink()))
	})
}

func (at *place) history(ctx context.Context) error {
	view, err := at.store.Show(ctx)
	if err != nil {
		return err
	}
	doc := map[string]any{"namespace": at.store.Namespace, "history": append([]stages.Change{}, view.Record.History...)}
	return at.env.print(doc, func(b *strings.Builder) {
		for _, c := range view.Record.History {
			fmt.Fprintf(b, "%s  epoch %-3d  %s  %s\n", c.At.Format(time.RFC3339), c.Epoch, safe(c.By), safe(c.What))
			if c.Note != "" {
				fmt.Fprintf(b, "    %s\n", safe(c.Note))
			}
		}
	})
}
