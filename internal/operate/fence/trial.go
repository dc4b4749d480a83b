package fence

import (
	"context"
	"slices"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// witnesses are keys that stand for all keys of the locks: one of each lock pattern, and one where it
// meets each key pattern of a rule.
func witnesses(locks []string, r rule) []string {
	var keys []string
	add := func(a, b string) {
		if key, ok := servers.Meet(a, b); ok && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, lock := range locks {
		add(lock, "*")
		for _, pattern := range r.patterns() {
			add(lock, pattern)
		}
	}
	return keys
}

// forms are words that send a command with a key in one of its places after the other, and another key in the rest.
type forms func(command, key, other string) [][]string

// takes are the forms in which the commands of Taking could take a key. RENAMENX moves another key there.
func takes(command, key, other string) [][]string {
	name := strings.ToUpper(command)
	switch command {
	case "setex", "psetex":
		return [][]string{{name, key, "1", "1"}}
	case "renamenx":
		return [][]string{{name, other, key}}
	}
	return [][]string{{name, key, "1"}}
}

// trials are a command's forms on a key, with each key of the user's own as the other one.
func trials(of forms, command, key string, r rule) (all [][]string) {
	others := []string{key}
	for _, pattern := range r.patterns() {
		if other, ok := servers.Meet(pattern, "*"); ok {
			others = append(others, other)
		}
	}
	for _, other := range others {
		for _, words := range of(command, key, other) {
			if !slices.ContainsFunc(all, func(t []string) bool { return slices.Equal(t, words) }) {
				all = append(all, words)
			}
		}
	}
	return all
}

// unshown says why trials that are denied do not stand for all keys, empty where they do.
func (r rule) unshown(command string) string {
	switch {
	case r.has("+" + command + "|"):
		return "user " + r.user + " may run " + strings.ToUpper(command) + " with some first arguments, and no trial shows which"
	case r.has("db="): // which Valkey has since 9.1
		return "user " + r.user + " has rights in some databases only, and ACL DRYRUN speaks of one"
	// A key may be readable by one pattern and writable by the other, and no key that stands for one of them shows that.
	case r.has("%R~", "%W~") && (command == "getset" || command == "renamenx" || !slices.Contains(Taking, command)):
		return "user " + r.user + " has key patterns that only read and others that only write; no trial stands for the keys that match both"
	}
	return ""
}

// tried is what the server says of one command, and denied only where the trials stand for every key. Else it names the reason.
func tried(ctx context.Context, conn redis.Conn, r rule, locks []string, command string, of forms) (said, evidence string) {
	said, evidence = trial(ctx, conn, r, locks, command, of)
	if why := r.unshown(command); said == "denied" && why != "" {
		return "unknown", why
	}
	return said, evidence
}

// trial asks the server whether a user may run a command on some key of the locks, and names what is allowed, or unknown.
func trial(ctx context.Context, conn redis.Conn, r rule, locks []string, command string, of forms) (said, evidence string) {
	said = "denied"
	for _, key := range witnesses(locks, r) {
		all := trials(of, command, key, r)
		if len(all) == 0 {
			return "unknown", command
		}
		for _, words := range all {
			switch dryrun(ctx, conn, r.user, words) {
			case "allowed":
				return "allowed", strings.Join(words, " ")
			case "unknown":
				said, evidence = "unknown", strings.Join(words, " ")
			}
		}
	}
	return said, evidence
}

// may is trial of several commands that take locks: allowed if one of them is.
func may(ctx context.Context, conn redis.Conn, r rule, locks, commands []string) (said, evidence string) {
	said = "denied"
	for _, command := range commands {
		switch is, of := trial(ctx, conn, r, locks, command, takes); is {
		case "allowed":
			return is, of
		case "unknown":
			said, evidence = is, of
		}
	}
	return said, evidence
}

// Excluded returns those of the commands that no user may run on any key of the locks, by the server's own word. Users that are off, and
// those that are trusted, do not count. What the server does not tell counts as allowed. It needs the rights acl|list and acl|dryrun, and a
// server from 7.0 on.
func Excluded(ctx context.Context, conn redis.Conn, locks, trusted, commands []string, of forms) (excluded []string, err error) {
	if len(locks) == 0 {
		return nil, nil // every key is a lock's
	}
	lines, err := list(ctx, conn)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	all := slices.DeleteFunc(people(ctx, conn, lines), func(who person) bool { return slices.Contains(trusted, who.user) })
	for _, command := range commands {
		if !slices.ContainsFunc(all, func(who person) bool {
			said, _ := tried(ctx, conn, who.rule, locks, command, of)
			return said != "denied"
		}) {
			excluded = append(excluded, command)
		}
	}
	return excluded, nil
}

// dryrun says allowed, denied, or unknown where the server cannot tell: before 7.0, or without the right.
func dryrun(ctx context.Context, conn redis.Conn, user string, command []string) string {
	reply, err := redis.String(redis.DoContext(conn, ctx, "ACL", redis.Args{"DRYRUN", user}.AddFlat(command)...))
	switch {
	case err != nil:
		return "unknown"
	case reply == "OK":
		return "allowed"
	default:
		return "denied"
	}
}

// DeniedTo names those of SETNX and GETSET that a user may not run on some key of the locks. A server before 7.0 cannot be asked: there the last
// word of the rule about a command decides.
func DeniedTo(ctx context.Context, conn redis.Conn, user string, locks []string) (commands []string, err error) {
	lines, err := list(ctx, conn)
	if err != nil {
		return nil, err
	}
	r := parse(ruleOf(lines, user))
	for _, command := range Denied {
		denied := slices.ContainsFunc(witnesses(locks, r), func(key string) bool {
			switch dryrun(ctx, conn, user, takes(command, key, key)[0]) {
			case "denied":
				return true
			case "unknown":
				return slices.Contains(r.root.commands, "-"+command)
			}
			return false
		})
		if denied {
			commands = append(commands, strings.ToUpper(command))
		}
	}
	return commands, nil
}
