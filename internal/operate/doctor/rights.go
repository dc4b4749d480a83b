package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/fence"
	"github.com/lockmigrate/lockmigrate/internal/protocol"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

func scripting(ctx context.Context, p *patient) (Verdict, string, string) {
	n, err := redis.Int64(p.do(ctx, "EVAL", "return 7", 0))
	switch {
	case err != nil:
		return Fail, "EVAL is refused: " + err.Error(), "grant +eval +evalsha to the users of the locks"
	case n != 7:
		return Fail, "EVAL answers nonsense", "is this a Redis server?"
	}
	var refused redis.Error
	if _, err := p.do(ctx, "EVALSHA", strings.Repeat("0", 40), 0); errors.As(err, &refused) && !strings.HasPrefix(string(refused), "NOSCRIPT") {
		return Fail, "EVALSHA is refused: " + string(refused), "grant +evalsha to the users of the locks, or undo rename-command for it"
	}
	// What effects.lua asks: a server that does not tell its version shows here whether it is too old.
	clocked, err := redis.Int64(p.do(ctx, "EVAL", "return (redis.replicate_commands or redis.REDIS_VERSION_NUM) and 1 or 0", 0))
	if err == nil && clocked == 0 {
		return Fail, "EVAL and EVALSHA work, but a script may not write after it has read the clock", "upgrade to Redis 3.2 or later for the bridge and the stages"
	}
	return Pass, "EVAL and EVALSHA work", ""
}

// lockName is a key that the rights are tried on: one of the deployment's if a pattern is given.
func (p *patient) lockName() string {
	if p.opts.Match == "" {
		return "lock:lockmigrate-doctor"
	}
	if key, ok := servers.Meet(p.opts.Match, "*lockmigrate-doctor*"); ok {
		return key
	}
	key, _ := servers.Meet(p.opts.Match, "*")
	return key
}

// rightsOf asks about every right of a use, by the table that the documents and the tests share. A right that
// could not be tried is no pass.
func rightsOf(use Use) func(ctx context.Context, p *patient) (Verdict, string, string) {
	return func(ctx context.Context, p *patient) (Verdict, string, string) {
		var missing, lost, unknown, grant []string
		open := false // a right that is needed was not told about
		for _, r := range use.Rights {
			if strings.HasPrefix(r.Name, "acl|") && p.user == "" && p.opts.User == "" && !p.exists(ctx, "ACL") {
				continue // without ACL there are no rules to look at
			}
			what := string(r.Kind) + " " + r.Name
			if r.Kind == Key {
				what = fmt.Sprintf("key %q", keyOf(r.Name, p.lockName()))
			}
			switch p.allows(ctx, use, r) {
			case allowed:
			case untold:
				unknown = append(unknown, what)
				open = open || r.Without == ""
			case denied:
				grant = append(grant, Use{Rights: []Right{r}}.Rules([]string{cmp.Or(p.opts.Match, "*")}, nil)[3:]...)
				if r.Without == "" {
					missing = append(missing, what)
				} else {
					lost = append(lost, what+": "+r.Without)
				}
			}
		}
		user := cmp.Or(p.opts.User, p.user)
		who, hint := "user "+user, fmt.Sprintf("ACL SETUSER %s %s", user, strings.Join(grant, " "))
		if user == "" { // no ACL: what is missing is missing for everybody
			who, hint = "this server", "undo rename-command for them, or upgrade the server"
		}
		switch {
		case len(missing) > 0:
			return Fail, fmt.Sprintf("%s cannot work: %s lacks %s", use.Name, who, strings.Join(append(missing, lost...), "; ")), hint
		case len(unknown) > 0 && len(unknown) == len(use.Rights):
			return skip("ACL DRYRUN does not tell what this user may run: it needs Redis 7.0, and the right acl|dryrun")
		case open:
			return skip(strings.Join(append(lost, "not told: "+strings.Join(unknown, ", ")), "; "))
		case len(unknown) > 0:
			lost = append(lost, "not told: "+strings.Join(unknown, ", "))
			fallthrough
		case len(lost) > 0:
			return Warn, fmt.Sprintf("%s lacks %s", who, strings.Join(lost, "; ")), hint
		}
		if user == "" {
			return Pass, "without ACL everybody may run what the server has; it has what " + use.Name + " needs", ""
		}
		return Pass, fmt.Sprintf("%s has all %d rights that %s needs", who, len(use.Rights), use.Name), ""
	}
}

// keyOf is the key of a role beside a lock.
func keyOf(role, lock string) string {
	switch role {
	case Lock:
		return lock
	case Namespaces:
		return role
	case Namespace:
		return "lockmigrate:{lockmigrate-doctor}:stage"
	}
	return protocol.Beside(lock, role)
}

// answer is what the server says about a right.
type answer uint8

const (
	untold answer = iota
	allowed
	denied
)

// allows asks ACL DRYRUN. A server without ACL allows what it has, and so does a rule that leaves nothing out. Nothing ever runs.
func (p *patient) allows(ctx context.Context, use Use, r Right) answer {
	if command := topLevel(r); command != "" && !p.exists(ctx, command) {
		return denied // renamed away, or not there: as good as refused
	}
	user := cmp.Or(p.opts.User, p.user)
	if user == "" {
		return map[bool]answer{true: untold, false: allowed}[p.exists(ctx, "ACL")]
	}
	reply, err := p.dryrun(ctx, user, p.trial(use, r)...)
	switch {
	case err != nil && p.unlimited(ctx, user), err == nil && reply == "OK":
		return allowed
	case err != nil:
		return untold
	case r.Kind == Command && strings.Contains(reply, "access"): // the other part of the trial is refused: its key
		return allowed
	case r.Kind != Command && strings.Contains(reply, "to run"):
		return untold
	}
	return denied
}

// unlimited tells that a user's rule allows everything: that can be read where it cannot be tried, before 7.0.
func (p *patient) unlimited(ctx context.Context, user string) bool {
	if p.boundless == nil {
		lines, _ := redis.Strings(p.do(ctx, "ACL", "LIST"))
		all := slices.ContainsFunc(lines, func(line string) bool {
			words := fence.Words(line)
			return len(words) > 1 && words[1] == user && slices.Contains(words, "~*") && slices.Contains(words, "+@all") &&
				!slices.ContainsFunc(words, func(w string) bool {
					return strings.HasPrefix(w, "-") || w == "resetchannels" || strings.HasPrefix(w, "&") && w != "&*"
				})
		})
		p.boundless = &all
	}
	return *p.boundless
}

// trial is a command that needs the right: it is asked about, and never run.
func (p *patient) trial(use Use, r Right) []any {
	key := p.lockName()
	switch r.Kind {
	case Channel:
		channel := strings.ReplaceAll(r.Name, "*", "lockmigrate-doctor")
		if r.Name == invalidate || !use.Has("publish") {
			return []any{"SUBSCRIBE", channel}
		}
		return []any{"PUBLISH", channel, "x"}
	case Key:
		switch {
		case use.Has("eval"):
			return []any{"EVAL", "return 1", "1", keyOf(r.Name, key)}
		case use.Has("setnx"):
			return []any{"SETNX", keyOf(r.Name, key), "x"}
		}
		return []any{"PTTL", keyOf(r.Name, key)} // of a tool that only reads
	}
	return redis.Args{}.AddFlat(strings.Split(strings.ToUpper(r.Name), "|"))
}

// tracking tries it on a connection of its own: the state ends with the connection.
func tracking(ctx context.Context, p *patient) (Verdict, string, string) {
	conn, err := p.end.DialAddr(ctx, p.addr)
	if err != nil {
		return skip("no second connection: " + err.Error())
	}
	defer conn.Close()
	id, err := redis.Int64(redis.DoContext(conn, ctx, "CLIENT", "ID"))
	if err == nil {
		_, err = redis.DoContext(conn, ctx, "CLIENT", "TRACKING", "ON", "REDIRECT", id, "BCAST", "PREFIX", "lockmigrate-doctor:")
	}
	if err != nil {
		return Warn, "CLIENT TRACKING is refused: " + err.Error(), "waiters poll with jitter instead; 6.0 or later and the right +client give wake-ups"
	}
	return Pass, "client tracking works", ""
}

func monitorRight(ctx context.Context, p *patient) (Verdict, string, string) {
	list, _ := endpoint.Clients(ctx, p.conn)
	others := 0
	for _, c := range list {
		if c["cmd"] == "monitor" {
			others++
		}
	}
	said, err := p.dryrun(ctx, p.user, "MONITOR")
	switch {
	case !p.exists(ctx, "MONITOR"):
		return Warn, "MONITOR is renamed or disabled", "observe cannot work there, and verify has its counters only"
	case err == nil && said != "OK":
		return Warn, fmt.Sprintf("user %s may not use MONITOR", p.user), fmt.Sprintf("ACL SETUSER %s +monitor for the time of the migration", p.user)
	case others > 0:
		return Warn, fmt.Sprintf("%d other clients run MONITOR already", others), "each may cost a large part of the throughput; end them"
	case err != nil:
		return skip("whether MONITOR is allowed cannot be asked before 7.0")
	}
	return Pass, "MONITOR may be used", ""
}

func aclLog(ctx context.Context, p *patient) (Verdict, string, string) {
	log, err := redis.Values(p.do(ctx, "ACL", "LOG"))
	if err != nil {
		return Warn, "ACL LOG is refused, or the server is older than 6.0", "without it a fence holds, but does not name who hits it"
	}
	if len(log) >= 128 {
		return Warn, fmt.Sprintf("%d entries: the log is full and forgets", len(log)), "ACL LOG RESET, and mend who causes them"
	}
	return Pass, fmt.Sprintf("readable, %d entries", len(log)), ""
}

func users(ctx context.Context, p *patient) (Verdict, string, string) {
	names, err := fence.Connections(ctx, p.conn)
	if err != nil {
		return skip("CLIENT LIST is refused")
	}
	var parts []string
	for n, c := range names {
		parts = append(parts, fmt.Sprintf("%s (%d)", n, c))
	}
	found := "connected as " + strings.Join(slices.Sorted(slices.Values(parts)), ", ")
	if len(names) == 1 && names["default"] > 1 {
		return Warn, found, "give new services a user of their own: then the default user can be fenced"
	}
	return Pass, found, ""
}

func clock(_ context.Context, p *patient) (Verdict, string, string) {
	if p.clocksErr != nil {
		return skip("TIME is refused")
	}
	off := p.clocks.Ahead.Abs()
	direction := "ahead of"
	if p.clocks.Ahead < 0 {
		direction = "behind"
	}
	found := fmt.Sprintf("this host is %v %s the server, give or take %v", off.Round(10*time.Microsecond), direction, (p.clocks.Trip / 2).Round(10*time.Microsecond))
	const hint = "let chrony or ntpd discipline both clocks; legacy locks here start or end by that much too early"
	switch {
	case off > time.Second:
		return Fail, found, hint
	case off > 100*time.Millisecond+p.clocks.Trip:
		return Warn, found, hint
	}
	return Pass, found, ""
}
