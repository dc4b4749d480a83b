package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/fence"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// permission is what one part of a user's ACL rules allows: its root, or one selector.
type permission struct {
	commands string // such as "+@all -setnx", in the order in which they apply
	keys     string // such as "~cache:* %R~lock:*"
}

// account is one user of a server.
type account struct {
	name  string
	live  bool // somebody can connect as it, or is connected
	parts []permission
}

// excluded returns the commands of Taking that no user may run on any key that matches the patterns, by the rules
// alone. Users that nobody can be, and those that are trusted, do not count. It says less rather than more: what it
// cannot read counts as allowed.
func excluded(accounts []account, patterns, trusted []string) (commands []string) {
	if len(patterns) == 0 || len(accounts) == 0 {
		return nil
	}
	allowed := map[string]bool{}
	for _, a := range accounts {
		if !a.live || slices.Contains(trusted, a.name) {
			continue
		}
		for _, p := range a.parts {
			if p.reaches(patterns) {
				for _, c := range p.taking() {
					allowed[c] = true
				}
			}
		}
	}
	for _, c := range Taking {
		if !allowed[c] {
			commands = append(commands, c)
		}
	}
	return commands
}

// reaches tells whether a permission may write a key that matches one of the patterns.
func (p permission) reaches(patterns []string) bool {
	for _, word := range fence.Words(p.keys) {
		rights, glob, found := strings.Cut(word, "~")
		if !found || rights == "%R" {
			if word == "allkeys" {
				return true
			}
			continue
		}
		for _, pattern := range patterns {
			if strings.ContainsAny(glob+pattern, `[]\`) || stages.Overlap(glob, pattern) {
				return true
			}
		}
	}
	return false
}

// withoutTaking are the categories of commands that hold none of Taking.
var withoutTaking = strings.Fields(`read set sortedset list hash bitmap hyperloglog geo stream pubsub admin blocking dangerous connection transaction
	scripting json search timeseries bloom cuckoo topk cms tdigest`)

// taking returns the commands of Taking that a permission allows.
func (p permission) taking() (commands []string) {
	allowed := map[string]bool{}
	for _, word := range fence.Words(strings.ToLower(p.commands)) {
		switch {
		case word == "+@all", word == "allcommands":
			for _, c := range Taking {
				allowed[c] = true
			}
		case word == "-@all", word == "nocommands", word == "-@write":
			clear(allowed)
		case word == "-@string":
			for _, c := range Taking {
				allowed[c] = allowed[c] && c == "renamenx" // of the category keyspace
			}
		case strings.HasPrefix(word, "-@"): // takes away less than all of one: as if nothing
		case strings.HasPrefix(word, "+@"):
			if !slices.Contains(withoutTaking, word[2:]) {
				for _, c := range Taking {
					allowed[c] = true
				}
			}
		case strings.HasPrefix(word, "+"):
			name, _, _ := strings.Cut(word[1:], "|")
			allowed[name] = true
		case strings.HasPrefix(word, "-"):
			delete(allowed, word[1:])
		}
	}
	for _, c := range Taking {
		if allowed[c] {
			commands = append(commands, c)
		}
	}
	return commands
}

// readAccounts reads the users of a server, from 7.0 on. A user that is off counts while it is connected, and where
// CLIENT LIST does not tell.
func readAccounts(ctx context.Context, conn redis.Conn) ([]account, error) {
	names, err := redis.Strings(redis.DoContext(conn, ctx, "ACL", "USERS"))
	if err != nil {
		return nil, err
	}
	var all []account
	for _, name := range names {
		reply, err := redis.Values(redis.DoContext(conn, ctx, "ACL", "GETUSER", name))
		if err != nil {
			return nil, err
		}
		fields := fieldsOf(reply)
		flags, err := redis.Strings(fields["flags"], nil)
		if err != nil {
			return nil, fmt.Errorf("the rules of user %q cannot be read: %w", name, err)
		}
		a := account{name: name, live: slices.Contains(flags, "on")}
		selectors, err := redis.Values(fields["selectors"], nil)
		if err != nil {
			return nil, fmt.Errorf("the selectors of user %q cannot be read: %w", name, err)
		}
		parts := []map[string]any{fields}
		for _, s := range selectors {
			list, err := redis.Values(s, nil)
			if err != nil {
				return nil, fmt.Errorf("a selector of user %q cannot be read: %w", name, err)
			}
			parts = append(parts, fieldsOf(list))
		}
		for _, part := range parts {
			commands, err1 := redis.String(part["commands"], nil)
			keys, err2 := redis.String(part["keys"], nil)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("the rules of user %q cannot be read", name)
			}
			a.parts = append(a.parts, permission{commands, keys})
		}
		all = append(all, a)
	}
	connected, err := fence.Connections(ctx, conn)
	for i := range all {
		all[i].live = all[i].live || err != nil || connected[all[i].name] > 0
	}
	return all, nil
}

// fieldsOf reads names and values in turn.
func fieldsOf(list []any) map[string]any {
	fields := map[string]any{}
	for i := 0; i+1 < len(list); i += 2 {
		if name, err := redis.String(list[i], nil); err == nil {
			fields[name] = list[i+1]
		}
	}
	return fields
}

// changesRules are the commands after which the rules may be others.
var changesRules = []string{"acl|setuser", "acl|deluser", "acl|load"}

// excludedNow reads the rules, and returns what they exclude on the lock keys. What cannot be read excludes nothing.
func (m *master) excludedNow(ctx context.Context) []string {
	if majorOf(m.last.version) < 7 || len(m.q.opts.Match) == 0 {
		return nil
	}
	accounts, err := readAccounts(ctx, m.conn)
	if err != nil {
		return nil
	}
	return excluded(accounts, m.q.opts.Match, m.q.opts.Trusted)
}

// unchanged returns the commands that the rules excluded at the start and at the end, if nobody changed rules in
// between.
func unchanged(start, end []string, first, last reading) (commands []string) {
	for _, name := range changesRules {
		if last.stats[name] != first.stats[name] {
			return nil
		}
	}
	for _, c := range start {
		if slices.Contains(end, c) {
			commands = append(commands, c)
		}
	}
	return commands
}
