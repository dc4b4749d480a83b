// Package fence makes a forgotten legacy client fail loudly: it denies SETNX and GETSET to the users that
// legacy clients authenticate as, by the server's own ACL.
//
// A fence stands only where the server itself says so. The words of a rule prove nothing: a selector, or a
// category that was granted later, can allow what another word denies. So each key pattern of the locks is
// met with each key pattern of the user's rule, and ACL DRYRUN is asked about a key of each meeting. A
// user may run a command on a lock's key only if some part of its rule allows the command and has a
// pattern of that key; so if these keys are denied, all are.
//
// What a fence cannot do. ACL has no rule about an option: SET NX and SET GET cannot be denied without
// denying SET, which WATCH with SET uses too. A fenced client can still DEL: one that held a lock before the
// fence deletes whatever is on the key when it is done. ACL rules are not replicated, so every server that
// may become the master needs the fence for itself. They are gone after a restart unless they are saved
// (ACL SAVE, CONFIG REWRITE).
//
// Least rights: acl|list, acl|dryrun, client|list, acl|setuser, and acl|log to watch. See SECURITY.md.
package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/glob"
	"github.com/lockmigrate/lockmigrate/internal/obligation"
)

// Denied are the commands that legacy clients take locks with and that nothing else needs.
var Denied = []string{"setnx", "getset"}

// Writes are the other commands with which a client can take or overwrite a lock that is a string.
var Writes = []string{"set", "setex", "psetex", "mset", "msetnx", "renamenx"}

// Verdict says how far a user is kept from taking a legacy lock.
type Verdict string

// The verdicts, from the server's own words.
const (
	Open    Verdict = "open"    // the user may run SETNX or GETSET on a lock's key
	Partly  Verdict = "partly"  // this user may not, but another user may, or one of Writes remains
	Fenced  Verdict = "fenced"  // no user of this server can take a legacy lock
	Unknown Verdict = "unknown" // the server could not be asked
)

// Plan is what is to be done to one user of one server.
type Plan struct {
	Server      string                  `json:"server"`
	Replica     bool                    `json:"replica,omitempty"` // today; rules are each server's own, and it may be the master tomorrow
	User        string                  `json:"user"`
	Now         string                  `json:"now"`               // the user's rules, without passwords
	Command     []string                `json:"command,omitempty"` // ACL SETUSER ..., empty when there is nothing to do
	Note        string                  `json:"note,omitempty"`
	Checks      []Trial                 `json:"checks,omitempty"`
	Verdict     Verdict                 `json:"verdict,omitempty"`     // what holds now; after Execute what holds then
	Obligations []obligation.Obligation `json:"obligations,omitempty"` // what Fenced needs
	Error       string                  `json:"error,omitempty"`       // why it was not done, or cannot be

	options Options
}

// Trial is one command that ACL DRYRUN was asked about.
type Trial struct {
	Command []string `json:"command"`
	Now     string   `json:"now"`   // what the server says today: allowed, denied or unknown
	After   string   `json:"after"` // what it is to say; empty where that is up to the user's other rights
	Did     string   `json:"did,omitempty"`
}

// Options say what to fence.
type Options struct {
	Users  []string
	Locks  []string // patterns of the locks' keys
	Keep   []string // patterns of other keys, where SETNX and GETSET stay allowed
	Remove bool
}

// Make plans for one server. It only reads.
func Make(ctx context.Context, conn redis.Conn, server string, o Options) ([]Plan, error) {
	lines, err := list(ctx, conn)
	if err != nil {
		return nil, err
	}
	if !o.Remove {
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	var plans []Plan
	for _, user := range o.Users {
		line := ruleOf(lines, user)
		if line == "" {
			return nil, &endpoint.Error{What: fmt.Sprintf("the server %s has no user %q", server, user), Advice: "ACL USERS lists them", BadInput: true}
		}
		p := Plan{Server: server, User: user, Now: withoutPasswords(line), options: o}
		r := parse(line)
		p.try(ctx, conn, r)
		if o.Remove {
			p.remove(r)
		} else {
			p.apply(r)
		}
		p.judge(ctx, conn, lines)
		plans = append(plans, p)
	}
	return plans, nil
}

// check refuses options that contradict each other.
func (o *Options) check() error {
	if len(o.Locks) == 0 {
		return &endpoint.Error{What: "no lock key is named", Advice: "give their patterns with --lock, such as 'lock.order.*'", BadInput: true}
	}
	for _, lock := range o.Locks {
		for _, keep := range o.Keep {
			if key, meet := glob.Meet(lock, keep); meet {
				return &endpoint.Error{What: fmt.Sprintf("the key %q is a lock (%s) and is to be kept (%s)", key, lock, keep), Advice: "give patterns that have no key in common", BadInput: true}
			}
		}
	}
	return nil
}

// list reads the rules of all users.
func list(ctx context.Context, conn redis.Conn) ([]string, error) {
	lines, err := redis.Strings(redis.DoContext(conn, ctx, "ACL", "LIST"))
	var refused redis.Error
	if !errors.As(err, &refused) || !strings.Contains(strings.ToLower(string(refused)), "unknown command") {
		return lines, endpoint.Explain(err)
	}
	return nil, unknownACL(ctx, conn, err)
}

// unknownACL says why a server does not know ACL: it is too old, or the command has another name.
func unknownACL(ctx context.Context, conn redis.Conn, cause error) error {
	info, _ := redis.String(redis.DoContext(conn, ctx, "INFO", "server"))
	version := ""
	if _, after, found := strings.Cut(info, "redis_version:"); found {
		version, _, _ = strings.Cut(after, "\r")
	}
	major := 0
	_, _ = fmt.Sscanf(version, "%d", &major)
	switch {
	case major >= 6:
		return &endpoint.Error{What: "the command ACL is renamed or disabled on this server (version " + version + ")", Advice: "have the provider set the rules, or undo rename-command for ACL", Cause: cause}
	case major > 0:
		return &endpoint.Error{What: "the server knows no ACL: version " + version + " is older than 6.0", Advice: "upgrade it; renaming SETNX and GETSET away in its configuration fences too, but then no rollback to stage legacy is possible", Cause: cause}
	}
	return &endpoint.Error{What: "the server knows no command ACL: it is older than 6.0, or the command is renamed", Advice: "ask for its version; INFO does not tell it here", Cause: cause}
}

func ruleOf(lines []string, user string) string {
	for _, r := range lines {
		if words := Words(r); len(words) > 1 && words[1] == user {
			return r
		}
	}
	return ""
}

// withoutPasswords leaves out the hashes that ACL LIST shows.
func withoutPasswords(line string) string {
	return strings.Join(slices.DeleteFunc(Words(line), func(w string) bool { return strings.HasPrefix(w, "#") }), " ")
}

// witnesses are keys that stand for all keys of the locks: one of each lock pattern, and one where it
// meets each key pattern of a rule.
func witnesses(locks []string, r rule) []string {
	var keys []string
	add := func(a, b string) {
		if key, ok := glob.Meet(a, b); ok && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, lock := range locks {
		add(lock, "*")
		for _, part := range append([]permissions{r.root}, r.selectors...) {
			for _, pattern := range part.keys() {
				add(lock, pattern)
			}
		}
	}
	return keys
}

// try asks the server what it says today about every key that matters.
func (p *Plan) try(ctx context.Context, conn redis.Conn, r rule) {
	locks := p.options.Locks
	if len(locks) == 0 {
		locks = []string{"*"}
	}
	add := func(after string, words ...string) {
		p.Checks = append(p.Checks, Trial{Command: words, After: after, Now: dryrun(ctx, conn, p.User, words)})
	}
	denied := "denied"
	if p.options.Remove {
		denied = ""
	}
	for _, key := range witnesses(locks, r) {
		for _, command := range Denied {
			words := []string{strings.ToUpper(command), key, "1"}
			add(denied, words...)
		}
	}
	for _, pattern := range p.options.Keep {
		if key, ok := glob.Meet(pattern, "*"); ok && !p.options.Remove {
			for _, command := range Denied {
				add("allowed", strings.ToUpper(command), key, "1")
			}
		}
	}
	for _, key := range witnesses(locks, r) {
		add("", "SET", key, "1", "NX")
		add("", "SET", key, "1", "GET")
		add("", "DEL", key)
	}
}

// dryrun says allowed, denied, or unknown where the server cannot tell: before 7.0, or without the right.
func dryrun(ctx context.Context, conn redis.Conn, user string, command []string) string {
	reply, err := redis.String(redis.DoContext(conn, ctx, "ACL", append([]any{"DRYRUN", user}, words(command)...)...))
	switch {
	case err != nil:
		return "unknown"
	case reply == "OK":
		return "allowed"
	default:
		return "denied"
	}
}

// said tells whether the server says something of any of the trials that a fence is to deny.
func (p *Plan) said(what string) (trial []string, found bool) {
	for _, t := range p.Checks {
		now := t.Now
		if t.Did != "" {
			now = t.Did
		}
		if t.After == "denied" && now == what {
			return t.Command, true
		}
	}
	return nil, false
}

// apply plans the fence.
func (p *Plan) apply(r rule) {
	o := p.options
	_, allowed := p.said("allowed")
	_, unknown := p.said("unknown")
	if p.Error = p.keepable(r); p.Error != "" {
		return
	}
	if !allowed && !unknown && p.kept() {
		p.Note = "fenced already: the server denies SETNX and GETSET on every key of the patterns"
		return
	}
	before, again := r.memory()
	if !again {
		before.root = r.root.commands
	}
	p.Command = []string{"ACL", "SETUSER", p.User, "-setnx", "-getset"}
	var selectors []string
	for _, s := range r.selectors {
		if s.ours() {
			continue // of an earlier fence: it is replaced
		}
		if !s.disjoint(o.Locks) && s.grants() {
			before.selectors = append(before.selectors, s)
			s.commands = append(slices.Clone(s.commands), "-setnx", "-getset")
		}
		selectors = append(selectors, s.text())
	}
	if !unknown { // selectors came with DRYRUN, in 7.0
		if len(r.selectors) > 0 {
			p.Command = append(p.Command, "clearselectors")
		}
		p.Command = append(p.Command, selectors...)
		p.Command = append(p.Command, before.text())
	}
	if len(o.Keep) > 0 {
		p.Command = append(p.Command, keeper(o.Keep))
	}
	if slices.Contains(r.root.other, "off") {
		p.Note = "the user is off: nobody can connect as it, but those who are connected go on"
	}
}

// disjoint tells that a part has no key in common with the locks.
func (p permissions) disjoint(locks []string) bool {
	for _, pattern := range p.keys() {
		for _, lock := range locks {
			if _, meet := glob.Meet(pattern, lock); meet {
				return false
			}
		}
	}
	return true
}

// kept tells that what is to be kept is allowed.
func (p *Plan) kept() bool {
	return !slices.ContainsFunc(p.Checks, func(t Trial) bool { return t.After == "allowed" && t.Now != "allowed" })
}

// keepable says why the patterns to be kept cannot be: a fence must not give a right that the user
// did not have before.
func (p *Plan) keepable(r rule) string {
	if _, unknown := p.said("unknown"); unknown && len(p.options.Keep) > 0 {
		return "to keep patterns the server needs selectors and ACL DRYRUN, which came with Redis 7.0, and this user the right acl|dryrun: leave out --keep"
	}
	before, fenced := r.memory()
	if !fenced {
		before.root = r.root.commands
	}
	for _, pattern := range p.options.Keep {
		held := slices.ContainsFunc(r.root.keys(), func(own string) bool { return glob.Covers(own, pattern) }) && (permissions{commands: before.root}).grants()
		for _, s := range r.selectors {
			held = held || s.grants() && slices.ContainsFunc(s.keys(), func(own string) bool { return glob.Covers(own, pattern) })
		}
		if !held {
			return fmt.Sprintf("to keep %s would give the user keys or commands that its rule does not clearly have today: leave it out, or narrow it", pattern)
		}
	}
	if !fenced && !p.kept() {
		return "the user may not run SETNX and GETSET on what is to be kept today, and a fence gives no rights: leave out --keep"
	}
	return ""
}

// remove plans the way back: the rule of before, as the fence remembers it.
func (p *Plan) remove(r rule) {
	before, ok := r.memory()
	if !ok {
		before.root = strip(r.root.commands)
		if len(before.root) == len(r.root.commands) && !slices.ContainsFunc(r.selectors, permissions.names) {
			p.Note = "there is no fence of ours to take away"
			if _, denied := p.denied(); denied {
				p.Note += "; if the user had SETNX and GETSET before: ACL SETUSER " + p.User + " +setnx +getset"
			}
			return
		}
		p.Note = "the rule does not remember a fence: only the words -setnx and -getset are taken out"
	} else if !same(r.root.commands, before.root) {
		p.Note = "other rights were changed since the fence went up: they stay as they are now"
	}
	p.Command = append([]string{"ACL", "SETUSER", p.User, "-@all"}, restored(r.root.commands, before.root)...)
	if len(r.selectors) == 0 {
		return
	}
	p.Command = append(p.Command, "clearselectors")
	for _, s := range r.selectors {
		if s.ours() {
			continue
		}
		if ok {
			for _, was := range before.selectors {
				if slices.Equal(s.other, was.other) {
					s.commands = restored(s.commands, was.commands)
					break
				}
			}
		} else if s.names() {
			s.commands = strip(s.commands)
		}
		p.Command = append(p.Command, s.text())
	}
}

// denied tells that the server denies SETNX or GETSET somewhere.
func (p *Plan) denied() (trial []string, found bool) {
	for _, t := range p.Checks {
		if (t.Command[0] == "SETNX" || t.Command[0] == "GETSET") && t.Now == "denied" {
			return t.Command, true
		}
	}
	return nil, false
}

// judge lists what a fence needs, and what the server says of each.
func (p *Plan) judge(ctx context.Context, conn redis.Conn, lines []string) {
	if p.options.Remove {
		return
	}
	all := people(ctx, conn, lines)
	user := p.userObligation()
	others := othersObligation(ctx, conn, all, p.options)
	set := p.setObligation(ctx, conn, all)
	p.Obligations = []obligation.Obligation{user, others, set}
	_, allowed := p.said("allowed")
	switch {
	case allowed:
		p.Verdict = Open
	case !user.Discharged:
		p.Verdict = Unknown
	case obligation.All(p.Obligations):
		p.Verdict = Fenced
	default:
		p.Verdict = Partly
	}
}

func (p *Plan) userObligation() obligation.Obligation {
	o := obligation.Obligation{ID: "user-denied"}
	if trial, found := p.said("allowed"); found {
		o.Evidence = fmt.Sprintf("ACL DRYRUN allows %s to user %s", strings.Join(trial, " "), p.User)
	} else if trial, found := p.said("unknown"); found {
		o.Evidence = fmt.Sprintf("ACL DRYRUN does not tell about %s (it needs Redis 7.0, and the right acl|dryrun)", strings.Join(trial, " "))
	} else {
		o.Discharged = true
		n := 0
		for _, t := range p.Checks {
			if t.After == "denied" {
				n++
			}
		}
		o.Evidence = fmt.Sprintf("ACL DRYRUN denies SETNX and GETSET to user %s, in %d trials that stand for every key of %s", p.User, n, strings.Join(p.options.Locks, " "))
	}
	return o
}

// person is a user that somebody can connect as, or is connected as.
type person struct {
	rule
	name string // with what is special about it
}

// people lists them.
func people(ctx context.Context, conn redis.Conn, lines []string) (all []person) {
	connected, unseen := Connections(ctx, conn)
	for _, line := range lines {
		who := person{rule: parse(line)}
		who.name = who.user
		switch off := slices.Contains(who.root.other, "off"); {
		case off && unseen != nil:
			who.name += " (off; whether it is connected needs +client|list)"
		case off && connected[who.user] > 0:
			who.name += " (off, but connected)"
		case off:
			continue
		}
		all = append(all, who)
	}
	return all
}

// may asks about one command on every key that matters. Allowed is the first trial that the server allows; unknown
// tells that it does not say of some.
func (who *person) may(ctx context.Context, conn redis.Conn, locks []string, command string) (allowed []string, unknown bool) {
	for _, key := range witnesses(locks, who.rule) {
		trial := trialOf(command, key)
		switch dryrun(ctx, conn, who.user, trial) {
		case "allowed":
			return trial, false
		case "unknown":
			unknown = true
		}
	}
	return nil, unknown
}

// trialOf writes a command that takes or overwrites the lock of a key.
func trialOf(command, key string) []string {
	name := strings.ToUpper(command)
	switch command {
	case "set":
		return []string{name, key, "1", "NX"}
	case "setex", "psetex":
		return []string{name, key, "1", "1"}
	case "renamenx":
		return []string{name, key, key}
	}
	return []string{name, key, "1"}
}

// othersObligation looks at every user that is not to be fenced.
func othersObligation(ctx context.Context, conn redis.Conn, all []person, opts Options) obligation.Obligation {
	o := obligation.Obligation{ID: "other-users-denied"}
	var may, unclear []string
	users := 0
	for _, who := range all {
		if slices.Contains(opts.Users, who.user) {
			continue
		}
		users++
		for _, command := range Denied {
			allowed, unknown := who.may(ctx, conn, opts.Locks, command)
			if allowed != nil && !slices.Contains(may, who.name) {
				may = append(may, who.name)
			}
			if unknown && !slices.Contains(unclear, who.name) {
				unclear = append(unclear, who.name)
			}
		}
	}
	switch {
	case len(may) > 0:
		o.Evidence = "may run SETNX or GETSET on a lock's key: user " + strings.Join(may, ", ")
	case len(unclear) > 0:
		o.Evidence = "ACL DRYRUN does not tell about user " + strings.Join(unclear, ", ")
	default:
		o.Discharged, o.Evidence = true, fmt.Sprintf("ACL DRYRUN denies SETNX and GETSET to the %d other users that are on, or connected", users)
	}
	return o
}

// setObligation is about the other commands that write a lock's value. Other clients need them too, so a fence does
// not deny them; but while anybody may run one, a legacy lock can be taken.
func (p *Plan) setObligation(ctx context.Context, conn redis.Conn, all []person) obligation.Obligation {
	o := obligation.Obligation{ID: "set-denied"}
	for _, who := range all {
		for _, command := range Writes {
			allowed, unknown := who.may(ctx, conn, p.options.Locks, command)
			switch {
			case allowed != nil && command == "set":
				o.Evidence = fmt.Sprintf("user %s may run %s: ACL has no rule about an option, so SET NX, SET GET and WATCH with SET are denied only together with SET", who.name, strings.Join(allowed, " "))
				return o
			case allowed != nil:
				o.Evidence = fmt.Sprintf("user %s may run %s", who.name, strings.Join(allowed, " "))
				return o
			case unknown:
				o.Evidence = fmt.Sprintf("ACL DRYRUN does not tell about %s by user %s", strings.ToUpper(command), who.name)
				return o
			}
		}
	}
	o.Discharged, o.Evidence = true, "ACL DRYRUN denies "+strings.ToUpper(strings.Join(Writes, ", "))+" on every key of the patterns, to everybody"
	return o
}

// Execute carries a plan out, asks the server whether it now says what was planned, and takes the change
// back where it does not. The user's rules of before are restored by their exact text.
func (p *Plan) Execute(ctx context.Context, conn redis.Conn) error {
	if len(p.Command) == 0 {
		return nil
	}
	lines, err := list(ctx, conn)
	if err != nil {
		return err
	}
	before := ruleOf(lines, p.User)
	if before == "" {
		return &endpoint.Error{What: fmt.Sprintf("the server has no user %q any more", p.User), Advice: "ACL USERS lists them"}
	}
	if _, err := redis.DoContext(conn, ctx, p.Command[0], words(p.Command[1:])...); err != nil {
		return endpoint.Explain(err)
	}
	for i := range p.Checks {
		t := &p.Checks[i]
		t.Did = dryrun(ctx, conn, p.User, t.Command)
		if t.After == "" || t.Did == t.After || t.Did == "unknown" {
			continue
		}
		restore := append([]string{"SETUSER", p.User, "reset"}, parse(before).words()...)
		if _, undo := redis.DoContext(conn, context.WithoutCancel(ctx), "ACL", words(restore)...); undo != nil {
			return fmt.Errorf("user %s: %v is %s instead of %s, and the change could not be taken back: %w", p.User, t.Command, t.Did, t.After, undo)
		}
		return &endpoint.Error{What: fmt.Sprintf("user %s: %v would be %s instead of %s; the change is taken back", p.User, t.Command, t.Did, t.After), Advice: "see ACL GETUSER " + p.User}
	}
	if lines, err = list(ctx, conn); err != nil {
		return err
	}
	p.judge(ctx, conn, lines)
	return nil
}

func words(list []string) []any {
	out := make([]any, len(list))
	for i, w := range list {
		out[i] = w
	}
	return out
}
