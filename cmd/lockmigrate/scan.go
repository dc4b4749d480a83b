package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
)

func newScanCommand(env *environment) *cobra.Command {
	opts := census.Options{Confidence: census.Medium}
	cmd := &cobra.Command{
		Use:   "scan [flags]",
		Short: "Take a census of lock keys: format, state, expiry, TTL",
		RunE:  env.onServer("", func(ctx context.Context, end *endpoint.Endpoint) error { return runScan(ctx, env, end, opts) }),
	}
	f := cmd.Flags()
	f.StringArrayVar(&opts.Match, "match", nil, "only keys of this glob `PATTERN`; repeatable")
	f.BoolVar(&opts.All, "all", false, "list also what may be a lock (low confidence), and keys that are none")
	f.DurationVar(&opts.GhostAfter, "ghost-after", time.Hour, "a `DURATION`: what expired longer ago is a ghost")
	f.IntVar(&opts.Rate, "rate", 0, "most keys a second, `N`; 0 is as fast as the server allows")
	return cmd
}

func runScan(ctx context.Context, env *environment, end *endpoint.Endpoint, opts census.Options) error {
	if opts.All {
		opts.Confidence = census.Low
	}
	status := env.status()
	out := bufio.NewWriterSize(env.stdout, 64<<10)
	report := &scanReport{env: env, w: out, types: opts.All}
	live := env.isTerminal(env.stdout)
	opts.Emit = func(row *census.Row) error {
		if live {
			status.Clear()
		}
		return report.row(row)
	}
	flushed := time.Now()
	opts.Progress = func(p census.Progress) {
		if time.Since(flushed) > 100*time.Millisecond { // rows reach a reader soon, and not one by one
			flushed = time.Now()
			_ = out.Flush() // the next write reports its error
		}
		status.Update("%s", scanProgress("scan", p))
	}

	took := census.New(opts)
	err := took.All(ctx, end)
	status.Clear()
	summary := took.Summary()
	if err == nil || summary.Scanned > 0 || errors.Is(err, context.Canceled) {
		if printErr := report.summary(summary); printErr != nil {
			return printErr
		}
	}
	if flushErr := out.Flush(); flushErr != nil {
		return failedError("", "write the result: %w", flushErr)
	}
	if summary.ClusterNode && end.Kind != endpoint.Cluster {
		env.note("this server is one node of a cluster, and only its keys were scanned: write redis+cluster:// for all")
	}
	if err != nil && summary.Scanned > 0 && !errors.Is(err, context.Canceled) {
		return failedError(hintOf(err), "after %d keys: %w", summary.Scanned, err)
	}
	return err
}

// scanProgress says how far a census is, and how long the rest takes.
func scanProgress(what string, p census.Progress) string {
	left := ""
	if p.Done >= 0 {
		what, left = fmt.Sprintf("%s: %2.0f%%", what, 100*p.Done), timeLeft(p.Elapsed, int(1000*p.Done), 1000)
	} else {
		what += ":"
	}
	return fmt.Sprintf("%s %s, %s a second, %s%s", what, counted(p.Scanned, "key"), thousands(perSecond(p.Scanned, p.Elapsed)), counted(p.Locks, "lock"), left)
}

// rowJSON is a row as a document.
type rowJSON struct {
	Key        string        `json:"key"`
	KeyBytes   []byte        `json:"key_base64,omitempty"` // where the key is no UTF-8
	Type       string        `json:"type"`
	Format     census.Format `json:"format"`
	Dialects   []string      `json:"dialects,omitempty"`
	Perhaps    []string      `json:"perhaps,omitempty"`
	State      census.State  `json:"state"`
	Expires    string        `json:"expires_at,omitempty"`
	TTL        int64         `json:"ttl_ms"`
	Confidence string        `json:"confidence"`
	Note       string        `json:"note,omitempty"`
}

func rowDocument(r *census.Row) rowJSON {
	doc := rowJSON{string(r.Key), nil, r.Type, r.Format, r.Dialects, r.Perhaps, r.State, "", r.TTL, r.Confidence.String(), r.Note}
	if !utf8.Valid(r.Key) {
		doc.KeyBytes = r.Key
	}
	if r.HasExpiry {
		doc.Expires = r.Expires.Time().Format(jsonTime)
	}
	return doc
}

// jsonTime is RFC 3339 with milliseconds.
const jsonTime = "2006-01-02T15:04:05.000Z07:00"

// summaryJSON is the summary as a document.
type summaryJSON struct {
	census.Summary
	Seconds float64 `json:"seconds"`
	Clock   string  `json:"server_time,omitempty"`
}

func summaryDocument(sum census.Summary) map[string]summaryJSON {
	doc := summaryJSON{Summary: sum, Seconds: sum.Elapsed.Round(time.Millisecond).Seconds()}
	doc.Lacks = append([]string{}, sum.Lacks...)
	if !sum.Clock.IsZero() {
		doc.Clock = sum.Clock.Format(jsonTime)
	}
	return map[string]summaryJSON{"summary": doc}
}

// sortedKeys returns the keys by falling count, then by name.
func sortedKeys[K ~string](counts map[K]int64) []K {
	return slices.SortedFunc(maps.Keys(counts), func(a, b K) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
}

// scanReport prints rows as they come: JSON, or a table, so their widths are fixed: what has a width first, the key last, and a number for its note. There
// are few notes; they follow in the end.
type scanReport struct {
	env   *environment
	w     io.Writer
	types bool // show the type of each key
	any   bool // a row was printed
	notes []string
}

func (t *scanReport) row(r *census.Row) error {
	if t.env.global.json {
		return encode(t.w, rowDocument(r))
	}
	if !t.any {
		t.any = true
		if err := t.line("STATE", "FORMAT", "EXPIRES", "TTL", "SURE", "TYPE", "KEY"); err != nil {
			return err
		}
	}
	expires, ttl, key := "-", "none", quoted(string(r.Key))
	if r.HasExpiry {
		expires = relative(r.Expires.Time().Sub(r.Now.Time()))
	}
	if r.TTL != census.NoTTL {
		ttl = short(time.Duration(r.TTL) * time.Millisecond)
	}
	switch {
	case r.Beside: // a note of its own
		key += "  " + r.Note
	case r.Note != "":
		key += fmt.Sprintf("  [%d]", t.note(r.Note))
	}
	return t.line(string(r.State), string(r.Format), expires, ttl, r.Confidence.String(), r.Type, key)
}

// note returns the number of a note, from 1.
func (t *scanReport) note(text string) int {
	i := slices.Index(t.notes, text)
	if i < 0 {
		i = len(t.notes)
		t.notes = append(t.notes, text)
	}
	return i + 1
}

func (t *scanReport) line(state, format, expires, ttl, sure, kind, key string) error {
	text := fmt.Sprintf("%-7s  ", state)
	if state == string(census.Ghost) {
		text = t.env.ink().Warn(text)
	}
	text += fmt.Sprintf("%-14s  %-10s  %-7s  %-6s  ", format, expires, ttl, sure)
	if t.types {
		text += fmt.Sprintf("%-6s  ", kind)
	}
	_, err := fmt.Fprintln(t.w, text+key)
	return err
}

func (t *scanReport) summary(sum census.Summary) error {
	if t.env.global.json {
		return encode(t.w, summaryDocument(sum))
	}
	var b strings.Builder
	if len(t.notes) > 0 {
		b.WriteByte('\n')
	}
	for i, note := range t.notes {
		fmt.Fprintf(&b, "[%d] %s\n", i+1, note)
	}
	if t.any {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s in %.1f s (%s a second)", counted(sum.Scanned, "key"), sum.Elapsed.Seconds(), thousands(perSecond(sum.Scanned, sum.Elapsed)))
	if !sum.Complete {
		b.WriteString(", " + t.env.ink().Warn("NOT ALL OF THEM"))
	}
	fmt.Fprintf(&b, "\n%s%s\n", counted(sum.Locks, "lock"), listed(sum.ByState))
	for _, f := range sortedKeys(sum.ByFormat) {
		fmt.Fprintf(&b, "  %-14s  %9s", f, thousands(sum.ByFormat[f]))
		if dialects := f.Dialects(); len(dialects) > 0 {
			b.WriteString("  dialect " + strings.Join(dialects, " or "))
		}
		b.WriteByte('\n')
	}
	if sum.Possible > 0 {
		fmt.Fprintf(&b, "not listed: %s of low confidence (--all lists them)\n", counted(sum.Possible, "key"))
	}
	if sum.Unread > 0 {
		fmt.Fprintf(&b, "not read: %s that this user has no right to, or that moved between nodes\n", counted(sum.Unread, "key"))
	}
	each(&b, "not read", sum.Lacks)
	if sum.Skipped > 0 {
		fmt.Fprintf(&b, "not read: %s with a name longer than 64 KiB\n", counted(sum.Skipped, "key"))
	}
	if off := sum.Offset.Abs(); off > time.Second {
		direction := "ahead of"
		if sum.Offset > 0 {
			direction = "behind"
		}
		fmt.Fprintf(&b, "this host's clock is %s %s the server's; times are the server's\n", short(off), direction)
	}
	_, err := io.WriteString(t.w, fold(b.String(), t.env.screen()))
	return err
}

func listed[K ~string](counts map[K]int64) string {
	var parts []string
	for _, k := range sortedKeys(counts) {
		parts = append(parts, fmt.Sprintf("%s %s", thousands(counts[k]), k))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
