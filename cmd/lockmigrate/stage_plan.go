package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
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
	name     string // the flag that --execute needs beside it
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

// plan prints a plan, and returns why it would be refused: the error says so.
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
		fmt.Fprintf(b, "plan: %s\n", safe(p.what))
		if p.seen != nil {
			fmt.Fprintf(b, "on the keys: %s\n", p.seen)
		}
		for _, know := range p.know {
			fmt.Fprintf(b, "know: %s\n", know)
		}
		for _, blocker := range p.blockers {
			fmt.Fprintf(b, "%s: %s\n", p.by, safe(blocker.String()))
		}
		b.WriteString(nothingWritten(p.name, p.refused))
	})
	return cmp.Or(err, p.refused)
}

// forceable lets --force overrule a refusal: it is said, and does not stand in the way.
func (at *place) forceable(refused error) error {
	if refused != nil && isOwnError(refused) && at.flags.forced() != "" {
		at.env.note("forced: %s", safe(refused.Error()))
		return nil
	}
	return refused
}

func shownPatterns(patterns []string) string {
	return safe(strings.Join(stages.EscapeAll(patterns), " "))
}

// restsOn returns what a step rests on. Only the step to modern wants evidence: from then on nothing but the
// form of its tokens stands between a forgotten legacy client and a lock. The certificate must be about the
// record as it stands now, and its evidence is judged again: neither its verdict nor its patterns are trusted.
func restsOn(now time.Time, record stages.Record, to stages.Stage, flags stageFlags) (string, error) {
	hint := fmt.Sprintf(`"lockmigrate verify --namespace %s --longest-silence DURATION --out FILE" writes one; advance takes the newest one in the working folder, or --certificate FILE; or say why not with --force REASON`, record.Namespace)
	none, forced := "modern wants a fresh certificate that no legacy client is left", flags.forced()
	if to == stages.New {
		hint = fmt.Sprintf(`"lockmigrate verify --only-members --namespace %s --old URL --longest-silence DURATION --for LONGER --out FILE" shows it where Old is on Redis; else say how you know it with --force "REASON"`, record.Namespace)
		none = "at stage new nobody keeps out a process that locks by Old alone, and no certificate says that there is none"
		forced = strings.Replace(forced, "forced", fmt.Sprintf("stated of Old, %v", record.Handover.Old), 1)
	}
	if to != stages.New && (to != stages.Modern || record.Stage != stages.Bridge) || forced != "" {
		return forced, nil
	}
	file, c := newestCertificate(record)
	switch {
	case flags.evidence != "":
		var err error
		file = flags.evidence
		if c, err = verify.Load(file); err != nil {
			return "", failedError(hint, "%w", err)
		}
	case file == "":
		return "", unsafeError(hint, "%s", none)
	}
	note, err := shows(c, file, record, now)
	if err != nil {
		return "", unsafeError(hint, "%w", err)
	}
	return note, nil
}

// shows says what a certificate shows of a record as it stands, or why it supports no step.
func shows(c verify.Certificate, file string, record stages.Record, now time.Time) (string, error) {
	if err := c.Supports(record, now); err != nil {
		return "", fmt.Errorf("%s does not support the step: %w", file, err)
	}
	longest := time.Duration(c.Evidence.LongestSeconds * float64(time.Second))
	seen := "none seen"
	if record.Handover != nil {
		seen = "only members seen"
	}
	return fmt.Sprintf("%s%s in %.0f s until %s%s%v", byCertificate, seen, c.Evidence.LookedSeconds, c.Evidence.Ended.UTC().Format(time.RFC3339), longestSaid, longest), nil
}

// byCertificate begins the note of a step that rests on a certificate, and behind longestSaid it ends.
const (
	byCertificate = "certificate: "
	longestSaid   = ", longest silence said to be "
)
