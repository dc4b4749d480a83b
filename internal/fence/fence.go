// Package fence makes a forgotten legacy client fail loudly: it denies SETNX and GETSET to the users that
// legacy clients authenticate as, by the server's own ACL.
//
// What a fence cannot do. A fenced client can still DEL: one that held a lock before the fence deletes
// whatever is on the key when it is done. A client that takes locks by SET NX, or with WATCH and SET
// alone, is not stopped. ACL rules are not replicated, so every server that may become the master needs the
// fence for itself. They are gone after a restart unless they are saved (ACL SAVE, CONFIG REWRITE).
package fence

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
)

// Denied are the commands without which no legacy client can take a lock.
var Denied = []string{"setnx", "getset"}

// Plan is what is to be done to one user of one server.
type Plan struct {
	Server  string   `json:"server"`
	Replica bool     `json:"replica,omitempty"` // today; rules are each server's own, and it may be the master tomorrow
	User    string   `json:"user"`
	Now     string   `json:"now"`               // the user's rules, without passwords
	Command []string `json:"command,omitempty"` // ACL SETUSER ..., empty when there is nothing to do
	Note    string   `json:"note,omitempty"`
	Checks  []Trial  `json:"checks,omitempty"`
	Error   string   `json:"error,omitempty"` // why it was not done, or cannot be
}

// Trial is one command that ACL DRYRUN was asked about.
type Trial struct {
	Command []string `json:"command"`
	Now     string   `json:"now"`   // what the server says today
	After   string   `json:"after"` // what it is to say
	Did     string   `json:"did,omitempty"`
}

// Options say what to fence.
type Options struct {
	Users  []string
	Lock   string   // a key that must be fenced, for the trials
	Keep   []string // patterns where SETNX and GETSET stay allowed
	Remove bool
}

// Make plans for one server. It only reads.
func Make(ctx context.Context, conn redis.Conn, server string, o Options) ([]Plan, error) {
	rules, err := redis.Strings(redis.DoContext(conn, ctx, "ACL", "LIST"))
	if err != nil {
		if refused, ok := err.(redis.Error); ok && strings.Contains(string(refused), "unknown command") {
			return nil, &endpoint.Error{What: "the server knows no ACL: it is older than 6.0", Advice: "upgrade it, or rename SETNX and GETSET away in its configuration", Cause: err}
		}
		return nil, endpoint.Explain(err)
	}
	var plans []Plan
	for _, user := range o.Users {
		rule := ruleOf(rules, user)
		if rule == "" {
			return nil, &endpoint.Error{What: fmt.Sprintf("the server %s has no user %q", server, user), Advice: "ACL USERS lists them", BadInput: true}
		}
		p := Plan{Server: server, User: user, Now: withoutPasswords(rule)}
		if o.Remove {
			p.remove(rule)
		} else {
			p.apply(rule, o.Keep)
		}
		p.try(ctx, conn, o)
		plans = append(plans, p)
	}
	return plans, nil
}

func ruleOf(rules []string, user string) string {
	for _, r := range rules {
		if words := strings.Fields(r); len(words) > 1 && words[1] == user {
			return r
		}
	}
	return ""
}

// withoutPasswords leaves out the hashes that ACL LIST shows.
func withoutPasswords(rule string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(rule), func(w string) bool { return strings.HasPrefix(w, "#") }), " ")
}

// root is a rule without its selectors; selectors are what stands in parentheses.
func split(rule string) (root []string, selectors []string) {
	for {
		before, rest, found := strings.Cut(rule, "(")
		root = append(root, strings.Fields(before)...)
		if !found {
			return root, selectors
		}
		inner, after, _ := strings.Cut(rest, ")")
		selectors = append(selectors, strings.TrimSpace(inner))
		rule = after
	}
}

// ours tells a selector that only brings SETNX and GETSET back.
func ours(selector string) bool {
	for _, w := range strings.Fields(selector) {
		switch {
		case strings.HasPrefix(w, "~"), strings.HasPrefix(w, "%"), w == "resetchannels", w == "-@all", w == "+setnx", w == "+getset":
		default:
			return false
		}
	}
	return strings.Contains(selector, "+setnx") && strings.Contains(selector, "+getset")
}

func (p *Plan) apply(rule string, keep []string) {
	root, selectors := split(rule)
	if slices.Contains(root, "-setnx") && slices.Contains(root, "-getset") && !slices.ContainsFunc(selectors, ours) && len(keep) == 0 {
		p.Note = "fenced already"
		return
	}
	p.Command = []string{"ACL", "SETUSER", p.User, "-setnx", "-getset"}
	if slices.ContainsFunc(selectors, ours) { // a fence with other patterns: replace its selector
		p.Command = append(p.Command, "clearselectors")
		for _, s := range selectors {
			if !ours(s) {
				p.Command = append(p.Command, "("+s+")")
			}
		}
	}
	if len(keep) > 0 {
		p.Command = append(p.Command, "(+setnx +getset ~"+strings.Join(keep, " ~")+")")
	}
	if slices.Contains(root, "off") {
		p.Note = "the user is off: nobody can connect with it"
	}
}

func (p *Plan) remove(rule string) {
	root, selectors := split(rule)
	if !slices.Contains(root, "-setnx") && !slices.Contains(root, "-getset") {
		p.Note = "not fenced"
		return
	}
	p.Command = []string{"ACL", "SETUSER", p.User, "+setnx", "+getset"}
	if slices.ContainsFunc(selectors, ours) {
		p.Command = append(p.Command, "clearselectors")
		for _, s := range selectors {
			if !ours(s) {
				p.Command = append(p.Command, "("+s+")")
			}
		}
	}
}

// try asks the server what it would say today, and notes what it is to say afterwards.
func (p *Plan) try(ctx context.Context, conn redis.Conn, o Options) {
	type question struct {
		words   []string
		allowed bool
	}
	var all []question
	for _, command := range []string{"SETNX", "GETSET"} {
		all = append(all, question{[]string{command, o.Lock, "1"}, o.Remove})
	}
	for _, pattern := range o.Keep {
		all = append(all, question{[]string{"SETNX", strings.NewReplacer("*", "x", "?", "x").Replace(pattern), "1"}, true})
	}
	all = append(all, question{[]string{"DEL", o.Lock}, true})
	for _, q := range all {
		after := "denied"
		if q.allowed {
			after = "allowed"
		}
		if q.words[0] == "DEL" {
			after = "" // whatever it was
		}
		t := Trial{Command: q.words, After: after, Now: p.dryrun(ctx, conn, q.words)}
		if t.After == "" {
			t.After = t.Now
		}
		p.Checks = append(p.Checks, t)
	}
}

// dryrun says allowed, denied, or unknown where the server cannot tell (before 7.0).
func (p *Plan) dryrun(ctx context.Context, conn redis.Conn, words []string) string {
	args := []any{"DRYRUN", p.User}
	for _, w := range words {
		args = append(args, w)
	}
	reply, err := redis.String(redis.DoContext(conn, ctx, "ACL", args...))
	switch {
	case err != nil:
		return "unknown"
	case reply == "OK":
		return "allowed"
	default:
		return "denied"
	}
}

// Execute carries a plan out, asks the server whether it now says what was planned, and takes the change
// back where it does not. The user's rules of before are restored by their exact text.
func (p *Plan) Execute(ctx context.Context, conn redis.Conn) error {
	if len(p.Command) == 0 {
		return nil
	}
	rules, err := redis.Strings(redis.DoContext(conn, ctx, "ACL", "LIST"))
	if err != nil {
		return endpoint.Explain(err)
	}
	before := ruleOf(rules, p.User)
	if _, err := redis.DoContext(conn, ctx, p.Command[0], words(p.Command[1:])...); err != nil {
		return endpoint.Explain(err)
	}
	for i := range p.Checks {
		t := &p.Checks[i]
		t.Did = p.dryrun(ctx, conn, t.Command)
		if t.Did != t.After && t.Did != "unknown" && t.After != "unknown" {
			restore := append([]string{"SETUSER", p.User, "reset"}, ruleWords(before)...)
			_, undo := redis.DoContext(conn, context.WithoutCancel(ctx), "ACL", words(restore)...)
			if undo != nil {
				return fmt.Errorf("user %s: %v is %s instead of %s, and the change could not be taken back: %w", p.User, t.Command, t.Did, t.After, undo)
			}
			return &endpoint.Error{What: fmt.Sprintf("user %s: %v would be %s instead of %s; the change is taken back", p.User, t.Command, t.Did, t.After), Advice: "see ACL GETUSER " + p.User}
		}
	}
	return nil
}

// ruleWords cuts a line of ACL LIST into arguments of ACL SETUSER: a selector is one argument.
func ruleWords(rule string) []string {
	root, selectors := split(rule)
	out := slices.Clone(root[2:]) // without "user NAME"
	for _, s := range selectors {
		out = append(out, "("+s+")")
	}
	return out
}

func words(list []string) []any {
	out := make([]any, len(list))
	for i, w := range list {
		out[i] = w
	}
	return out
}
