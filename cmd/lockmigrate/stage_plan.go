package main

import (
	"fmt"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/operate/terminal"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// plan is what --execute would do to a namespace.
type plan struct {
	what     string
	record   stages.Record // as it stands
	seen     *keysSeen     // nil: nobody looked at the keys
	know     []string      // the consequences
	blockers []stages.Blocker
	by       string // what is said of a blocker
	refused  error  // why it would be refused
}

// carryOut is the only way to a change: without --execute the plan is printed, a refusal ends it, and else it is done.
func (at *place) carryOut(p plan, do func() error) error {
	switch {
	case !at.flags.execute:
		return at.plan(p)
	case p.refused != nil:
		return p.refused
	}
	return do()
}

// plan prints a plan, and returns why it would be refused.
func (at *place) plan(p plan) error {
	doc := map[string]any{
		"plan": p.what, "executed": false, "namespace": at.store.Namespace, "stage": p.record.Stage.String(), "epoch": p.record.Epoch,
		"blocked_by": stages.BlockersDocument(p.blockers), "know": append([]string{}, p.know...),
	}
	if p.seen != nil {
		doc["on_the_keys"] = p.seen.String()
	}
	if p.refused != nil {
		doc["refused"], doc["hint"] = p.refused.Error(), hintOf(p.refused)
	}
	err := at.env.print(doc, func(b *strings.Builder) {
		fmt.Fprintf(b, "plan: %s\n", terminal.Safe(p.what))
		if p.seen != nil {
			fmt.Fprintf(b, "on the keys: %s\n", p.seen)
		}
		for _, know := range p.know {
			fmt.Fprintf(b, "know: %s\n", know)
		}
		for _, blocker := range p.blockers {
			fmt.Fprintf(b, "%s: %s\n", p.by, terminal.Safe(blocker.String()))
		}
		if p.refused != nil {
			fmt.Fprintf(b, "first: %s: %s\n", terminal.Safe(p.refused.Error()), terminal.Safe(hintOf(p.refused)))
		}
	})
	if err == nil && p.refused == nil && !at.env.global.json {
		at.env.note("nothing was written; add --execute to do it")
	}
	if err != nil {
		return err
	}
	return p.refused
}

// forceable lets --force overrule a refusal: it is said, and does not stand in the way.
func (at *place) forceable(refused error) error {
	if refused != nil && isOwnError(refused) && at.flags.forced() != "" {
		at.env.note("forced: %s", terminal.Safe(refused.Error()))
		return nil
	}
	return refused
}

func shownPatterns(patterns []string) string {
	return terminal.Safe(strings.Join(stages.EscapeAll(patterns), " "))
}
