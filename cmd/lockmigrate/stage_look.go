package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/census"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// keysSeen is what stands on the keys of a namespace at one moment, on every master. It has the same size however many keys there are.
type keysSeen struct {
	census.Summary
	keys    int64
	legacy  []legacyKind
	tokens  int64      // bridge values and tokens
	others  int64      // no lock that is known
	endless legacyKind // strings without a TTL that are no expiry: verify takes each for a lock that is held
}

// legacyKind are the expiries on the keys that are of one form, and held, or not held.
type legacyKind struct {
	form     string   // the dialects that write it, for people; else the name of the form
	dialects []string // that write this form
	held     bool
	n        int64
	first    []census.Row // a few of them, by their names
}

// mostNamed is how many keys a message names.
const mostNamed = 3

func byKey(a, b census.Row) int { return bytes.Compare(a.Key, b.Key) }

// add keeps a row that is among the first.
func (k *legacyKind) add(row *census.Row) {
	k.n++
	if at, _ := slices.BinarySearchFunc(k.first, *row, byKey); at < mostNamed {
		kept := census.Row{Look: census.Look{Key: bytes.Clone(row.Key), TTL: row.TTL}, Now: row.Now, Finding: row.Finding}
		k.first = slices.Insert(k.first, at, kept)
		k.first = k.first[:min(mostNamed, len(k.first))]
	}
}

// look goes through the keys that match the patterns, as scan does. It writes nothing.
func (at *place) look(ctx context.Context, patterns []string) (*keysSeen, error) {
	seen := &keysSeen{}
	status := at.env.status()
	defer status.Clear()
	count := census.New(census.Options{
		Match: patterns, GhostAfter: time.Minute,
		Emit: seen.add,
		Progress: func(p census.Progress) {
			status.Update("%s", scanProgress("looking at the keys", p))
		},
	})
	if err := count.All(ctx, at.end); err != nil {
		return nil, fmt.Errorf("look at the keys: %w", err)
	}
	seen.Summary = count.Summary()
	return seen, nil
}

func (k *keysSeen) add(row *census.Row) error {
	if row.Beside {
		return nil // a part of another lock
	}
	k.keys++
	if row.Type == "string" && row.TTL == census.NoTTL && !row.Format.Legacy() && row.Format != census.Bridge {
		k.endless.add(row)
	}
	switch row.Format {
	case census.Bridge, census.Token, census.TokenNoTTL, census.Redisson, census.HashUID:
		if row.Format != census.TokenNoTTL || len(row.Dialects) == 0 {
			k.tokens++
			return nil
		} // else a legacy client's value without an expiry
	case census.UnknownFormat:
		k.others++
		return nil
	}
	form := cmp.Or(strings.Join(row.Dialects, " or "), string(row.Format)) // of those that carry an expiry, whatever their number
	held := row.State == census.Held
	i := slices.IndexFunc(k.legacy, func(l legacyKind) bool { return l.form == form && l.held == held })
	if i < 0 {
		i = len(k.legacy)
		k.legacy = append(k.legacy, legacyKind{form: form, dialects: row.Dialects, held: held})
	}
	k.legacy[i].add(row)
	return nil
}

// these are the legacy values of some kinds: how many, of which forms, and the first of them.
func (k *keysSeen) these(which func(legacyKind) bool) (n int64, forms []string, first []census.Row) {
	for _, l := range k.legacy {
		if which(l) {
			n += l.n
			first = append(first, l.first...)
			if !slices.Contains(forms, l.form) {
				forms = append(forms, l.form)
			}
		}
	}
	slices.Sort(forms)
	slices.SortFunc(first, byKey)
	return n, forms, first[:min(mostNamed, len(first))]
}

func everyKind(legacyKind) bool  { return true }
func heldKind(l legacyKind) bool { return l.held }

// String says what was found, in one line.
func (k *keysSeen) String() string {
	if k.keys == 0 {
		return "no key matches at the moment, so what the clients write could not be compared; lockmigrate observe watches them"
	}
	text := counted(k.keys, "key")
	var parts []string
	_, forms, _ := k.these(everyKind)
	for _, form := range forms {
		n, _, _ := k.these(func(l legacyKind) bool { return l.form == form })
		parts = append(parts, thousands(n)+" "+form)
	}
	if held, _, _ := k.these(heldKind); held > 0 {
		parts = append(parts, thousands(held)+" of them held")
	}
	if k.tokens > 0 {
		parts = append(parts, counted(k.tokens, "token"))
	}
	if k.others > 0 {
		parts = append(parts, thousands(k.others)+" that are no known lock")
	}
	return text + ": " + strings.Join(parts, ", ")
}

// trusted refuses a look that did not see everything.
func (k *keysSeen) trusted() error {
	switch {
	case !k.Complete:
		return unsafeError("run it again, or say with --force REASON why it does not matter", "not all keys could be looked at")
	case k.Unread > 0:
		return unsafeError("use a user that may read the lock keys, or say with --force REASON why it does not matter", "%d keys could not be read: %s", k.Unread, strings.Join(k.Lacks, "; "))
	case !k.Clock.IsZero() && k.Clock.Before(protocol.EarliestExpiry.Time()):
		return unsafeError("set the server's clock", "the server's clock says %s: the bridge takes no expiry of that time for one", k.Clock.UTC().Format(time.DateOnly))
	}
	return nil
}

// speak refuses a dialect that the values on the keys contradict.
func (k *keysSeen) speak(dialect string) error {
	if err := k.trusted(); err != nil {
		return err
	}
	isStrange := func(l legacyKind) bool { return !slices.Contains(l.dialects, dialect) }
	all, _, _ := k.these(everyKind)
	strange, forms, first := k.these(isStrange)
	if strange == 0 {
		return nil
	}
	hint := "two dialects on one key do not exclude each other: find out who writes what with \"lockmigrate observe\"; when these values are nobody's any more, say so with --force REASON"
	if dialects := k.legacy[slices.IndexFunc(k.legacy, isStrange)].dialects; len(forms) == 1 && strange == all && len(dialects) > 0 {
		hint = fmt.Sprintf("give --dialect %s; when these values are nobody's any more, say so with --force REASON", dialects[0])
	}
	return unsafeError(hint, "%s of %s legacy values on these keys are not of dialect %s but %s: %s", thousands(strange), thousands(all), dialect, strings.Join(forms, ", "), listKeys(first, strange, false))
}

// modernCan refuses stage modern while legacy values stand on the keys: from then on nobody takes them over.
func (k *keysSeen) modernCan(patterns []string) error {
	if err := k.trusted(); err != nil {
		return err
	}
	n, _, first := k.these(everyKind)
	if n == 0 {
		return nil
	}
	hint := "wait until their holders have released them"
	if held, _, _ := k.these(heldKind); held < n {
		hint = fmt.Sprintf("remove the dead ones with \"lockmigrate sweep%s --ghost-after 1m --execute\", wait for the others", matchFlags(patterns))
	}
	what, them := fmt.Sprintf("legacy values stand on %s keys", thousands(n)), "them"
	if n == 1 {
		what, them = "a legacy value stands on 1 key", "it"
	}
	return unsafeError(hint+", and run it again; or go with --force REASON", "%s, and at stage modern nobody takes %s over: %s", what, them, listKeys(first, n, true))
}

// besides says what is no reason to refuse stage modern, and still keeps everybody from a key.
func (k *keysSeen) besides() (notes []string) {
	if n := k.endless.n; n > 0 {
		notes = append(notes, fmt.Sprintf("values without a TTL stand on keys (%d): one of a dead holder blocks its key for good; \"lockmigrate sweep --tokens\" gives tokens one", n))
	}
	if k.others > 0 {
		notes = append(notes, fmt.Sprintf("values that are no known lock stand on keys (%d): nobody can lock these; \"lockmigrate scan --all\" lists them", k.others))
	}
	return notes
}

// listKeys names the first of n keys.
func listKeys(first []census.Row, n int64, states bool) string {
	var parts []string
	for _, v := range first {
		text := quoted(string(v.Key))
		switch ends := v.Expires.Sub(v.Now); {
		case !states:
		case v.TTL >= 0:
			text += fmt.Sprintf(" (goes in %s)", short(time.Duration(v.TTL)*time.Millisecond))
		case !v.HasExpiry || v.Format == census.TokenNoTTL:
			text += " (no expiry)"
		case ends > 0:
			text += fmt.Sprintf(" (held for another %s)", short(ends))
		default:
			text += fmt.Sprintf(" (expired %s ago)", short(-ends))
		}
		parts = append(parts, text)
	}
	text := strings.Join(parts, ", ")
	if n -= int64(len(first)); n > 0 {
		text += fmt.Sprintf(" and %s more", thousands(n))
	}
	return text
}

// shellWord is a text as one word of another command line.
func shellWord(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@%+=,-") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// matchFlags are the flags that name a namespace's keys on another command line.
func matchFlags(patterns []string) string {
	text := ""
	for _, p := range patterns {
		text += " --match '" + strings.ReplaceAll(stages.Escape(p), "'", `'\''`) + "'"
	}
	return text
}

// unfenced refuses stage legacy while the rules of a server deny SETNX or GETSET to a user that a member is: at that
// stage Go members send what old clients send. It returns what it could not find out.
func unfenced(ctx context.Context, end *endpoint.Endpoint, view stages.View) (unknown []string, err error) {
	users, unnamed := membersUsers(view)
	nodes, err := end.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var where []string
	for _, n := range nodes {
		conn, err := end.DialNode(ctx, n.Addr)
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("%s cannot be asked for its rules: %v", n.Addr, err))
			continue
		}
		if unnamed > 0 && hasRules(ctx, conn) {
			unknown = append(unknown, fmt.Sprintf("the user of %s is not known, so a fence may keep them from every lock; \"lockmigrate fence --remove FILE --execute\" takes it away", counted(int64(unnamed), "member")))
			unnamed = 0
		}
		for _, user := range users {
			commands, err := fence.DeniedTo(ctx, conn, user, view.Record.Patterns)
			switch {
			case err != nil:
				unknown = append(unknown, fmt.Sprintf("the rules of user %s on %s cannot be read (%v); a fence may keep the members from every lock", quoted(user), n.Addr, err))
			case len(commands) > 0:
				where = append(where, fmt.Sprintf("%s denies %s to user %s", n.Addr, strings.Join(commands, " and "), user))
			}
		}
		_ = conn.Close()
	}
	if len(where) == 0 {
		return unknown, nil
	}
	return unknown, unsafeError("take the fence away first: \"lockmigrate fence --remove FILE --execute\", with the journal that it wrote; or give these users the right to SETNX and GETSET; or go with --force REASON",
		"at stage legacy the members could acquire nothing: %s", strings.Join(where, "; "))
}

// membersUsers returns the users that the living members are, and how many of them could not tell.
func membersUsers(view stages.View) (users []string, unnamed int) {
	for _, m := range view.Living() {
		switch {
		case m.Info.User == "":
			unnamed++
		case !slices.Contains(users, m.Info.User):
			users = append(users, m.Info.User)
		}
	}
	slices.Sort(users)
	return users, unnamed
}

// hasRules tells that the server has an ACL at all.
func hasRules(ctx context.Context, conn redis.Conn) bool {
	_, err := redis.DoContext(conn, ctx, "ACL", "WHOAMI")
	return err == nil || !strings.Contains(strings.ToLower(err.Error()), "unknown command")
}
