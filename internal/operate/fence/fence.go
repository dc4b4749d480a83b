// Package fence makes a forgotten legacy client fail loudly: it denies SETNX and GETSET to the users that
// legacy clients authenticate as, by the server's own ACL. With Options.All it denies every command that can take
// a lock, SET too: then nothing of these users needs to be watched.
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
// ACL has no rule about a command on some keys only: a fence denies its commands on every key of the user, but for those that
// Options.Keep names. The plan says so, and from whom it takes them (reach.go). The rights of before are written to a file before
// anything changes (journal.go), and Back restores exactly these.
//
// Least rights: acl|list, acl|dryrun, client|list, info, acl|setuser, and acl|log to watch. See SECURITY.md.
package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// Taking are the commands with which a client can take or overwrite a lock that is a string: Denied, and Writes.
var Taking = []string{"setnx", "getset", "set", "setex", "psetex", "mset", "msetnx", "renamenx"}

// Denied are those that legacy clients take locks with and that nothing else needs.
var Denied = Taking[:2:2]

// Writes are the others. Of the locks known to be in use SET NX and SETEX take; the rest is rare and could.
var Writes = Taking[2:]

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
	Server      string       `json:"server"`
	Replica     bool         `json:"replica,omitempty"` // today; rules are each server's own, and it may be the master tomorrow
	User        string       `json:"user"`
	Now         string       `json:"now"`               // the user's rules, without passwords
	Takes       *Reach       `json:"takes,omitempty"`   // what a fence takes away, and from whom; nil on the way back
	Command     []string     `json:"command,omitempty"` // ACL SETUSER ..., empty when there is nothing to do
	Note        string       `json:"note,omitempty"`
	Verdict     Verdict      `json:"verdict,omitempty"`     // what holds now; after Execute what holds then
	Obligations []Obligation `json:"obligations,omitempty"` // what Fenced needs
	Error       string       `json:"error,omitempty"`       // why it was not done, or cannot be
	Restore     []string     `json:"restore,omitempty"`     // with Error on the way back: ACL SETUSER ..., which restores the rights of before
	Unsure      bool         `json:"unsure,omitempty"`      // with Error: the change was sent, and may be done

	options Options
}

// Options say what to fence.
type Options struct {
	Users  []string
	Locks  []string      // patterns of the locks' keys
	Keep   []string      // patterns of other keys, where the denied commands stay allowed
	All    bool          // deny all of Taking, and not only Denied
	Sample time.Duration // for how long the rates of now are measured; 0: not at all
}

// commands are those that the fence denies.
func (o *Options) commands() []string {
	if o.All {
		return Taking
	}
	return Denied
}

// spoken names commands in a text.
func spoken(commands []string) string {
	upper := strings.ToUpper(strings.Join(commands[:len(commands)-1], ", "))
	return upper + " and " + strings.ToUpper(commands[len(commands)-1])
}

// Make plans for one server. It only reads.
func Make(ctx context.Context, conn redis.Conn, server string, o Options) ([]Plan, error) {
	lines, err := list(ctx, conn)
	if err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	rates, err := measure(ctx, conn, o.commands(), o.Sample)
	if err != nil {
		return nil, err
	}
	var plans []Plan
	for _, user := range o.Users {
		line := ruleOf(lines, user)
		if line == "" {
			return nil, &endpoint.Error{What: fmt.Sprintf("the server %s has no user %q", server, user), Advice: "ACL USERS lists them", BadInput: true}
		}
		p := Plan{Server: server, User: user, Now: withoutPasswords(line), options: o}
		r := parse(line)
		p.Takes = reach(ctx, conn, user, &o, rates)
		p.apply(ctx, conn, r)
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
			if key, meet := servers.Meet(lock, keep); meet {
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
	info, _ := endpoint.Info(ctx, conn, "server")
	version := info["redis_version"]
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

// apply plans the fence.
func (p *Plan) apply(ctx context.Context, conn redis.Conn, r rule) {
	o := p.options
	now, _ := may(ctx, conn, r, o.Locks, o.commands())
	if p.Error = p.keepable(ctx, conn, r, now); p.Error != "" {
		return
	}
	if now == "denied" {
		p.Note = "fenced already: the server denies " + spoken(o.commands()) + " on every key of the patterns"
		return
	}
	var denials []string
	for _, command := range o.commands() {
		denials = append(denials, "-"+command)
	}
	p.Command = append([]string{"ACL", "SETUSER", p.User}, denials...)
	var selectors []string
	changes := false
	for _, s := range r.selectors {
		if !s.disjoint(o.Locks) && s.grants(o.commands()) {
			s.commands = append(slices.Clone(s.commands), denials...)
			changes = true
		}
		selectors = append(selectors, s.text())
	}
	if changes { // a selector can only be written anew
		p.Command = append(append(p.Command, "clearselectors"), selectors...)
	}
	if len(o.Keep) > 0 {
		p.Command = append(p.Command, "(+"+strings.Join(o.commands(), " +")+" ~"+strings.Join(o.Keep, " ~")+")")
	}
	if slices.Contains(r.root.other, "off") {
		p.Note = "the user is off: nobody can connect as it, but those who are connected go on"
	}
}

// disjoint tells that a part has no key in common with the locks.
func (p permissions) disjoint(locks []string) bool {
	for _, pattern := range p.keys() {
		for _, lock := range locks {
			if _, meet := servers.Meet(pattern, lock); meet {
				return false
			}
		}
	}
	return true
}

// keeps tells whether the user may run the fence's commands on what is to be kept: allowed, or what the server says else, and of which command.
func (p *Plan) keeps(ctx context.Context, conn redis.Conn) (said, evidence string) {
	for _, pattern := range p.options.Keep {
		key, _ := servers.Meet(pattern, "*")
		for _, command := range p.options.commands() {
			words := takes(command, key, key)[0]
			if said := dryrun(ctx, conn, p.User, words); said != "allowed" {
				return said, strings.Join(words, " ")
			}
		}
	}
	return "allowed", ""
}

// keepable says why the patterns to be kept cannot be: a fence must not give a right that the user
// did not have before.
func (p *Plan) keepable(ctx context.Context, conn redis.Conn, r rule, now string) string {
	if now == "unknown" && len(p.options.Keep) > 0 {
		return "to keep patterns the server needs selectors and ACL DRYRUN (Redis 7.0), and this user the right acl|dryrun: leave out --keep"
	}
	for _, pattern := range p.options.Keep {
		if !slices.ContainsFunc(r.parts(), func(part permissions) bool {
			return part.grants(p.options.commands()) && slices.ContainsFunc(part.keys(), func(own string) bool { return servers.Covers(own, pattern) })
		}) {
			return fmt.Sprintf("to keep %s would give the user keys or commands that its rule does not clearly have today: leave it out, or narrow it; where a fence is up, take it away first", pattern)
		}
	}
	if said, _ := p.keeps(ctx, conn); said != "allowed" {
		return "the user may not run " + spoken(p.options.commands()) + " on what is to be kept today, and a fence gives no rights: leave out --keep, or take an earlier fence away first"
	}
	return ""
}

// Execute carries a plan out, asks the server whether it now says what was planned, and takes the change
// back where it does not. The user's rules of before are restored by their exact text. An error with Unsure means that the change may stand.
// A fence is recorded before it changes anything, and once more when it stands; nil: it is not recorded, and Back cannot take it away.
func (p *Plan) Execute(ctx context.Context, conn redis.Conn, record func(Entry) error) error {
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
	entry := Entry{At: time.Now().UTC(), Server: p.Server, User: p.User, Before: withoutPasswords(before), Command: p.Command}
	if p.Takes == nil {
		record = nil // the way back
	}
	if record != nil {
		if err := record(entry); err != nil {
			return &endpoint.Error{What: "nothing was changed: the former rights cannot be written", Advice: "name a file that can be written with --journal", Cause: err}
		}
	}
	known := *p
	p.Unsure, p.Verdict, p.Obligations = true, "", nil // what held before may hold no more
	if _, err := redis.DoContext(conn, ctx, p.Command[0], redis.Args{}.AddFlat(p.Command[1:])...); err != nil {
		var refused redis.Error
		if errors.As(err, &refused) {
			*p = known
		}
		return endpoint.Explain(err)
	}
	if lines, err = list(ctx, conn); err != nil {
		return err
	}
	if wrong := p.disobeyed(ctx, conn, parse(ruleOf(lines, p.User))); wrong != "" {
		restore := redis.Args{"SETUSER", p.User, "reset"}.AddFlat(parse(before).words())
		if _, undo := redis.DoContext(conn, context.WithoutCancel(ctx), "ACL", restore...); undo != nil {
			return fmt.Errorf("user %s: %s, and the change could not be taken back: %w", p.User, wrong, undo)
		}
		*p = known
		return &endpoint.Error{What: fmt.Sprintf("user %s: %s; the change is taken back", p.User, wrong), Advice: "see ACL GETUSER " + p.User}
	}
	p.judge(ctx, conn, lines)
	p.Unsure = false
	if record == nil {
		return nil
	}
	entry.After = withoutPasswords(ruleOf(lines, p.User))
	return record(entry)
}

// disobeyed says what the server says that is not as planned, empty where it says none.
func (p *Plan) disobeyed(ctx context.Context, conn redis.Conn, now rule) string {
	if said, evidence := may(ctx, conn, now, p.options.Locks, p.options.commands()); said == "allowed" {
		return evidence + " would be allowed instead of denied"
	}
	if said, evidence := p.keeps(ctx, conn); said == "denied" {
		return evidence + " would be denied instead of allowed"
	}
	return ""
}
