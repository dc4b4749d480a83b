package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/protocol"
)

func scripting(ctx context.Context, p *patient) (Verdict, string, string) {
	n, err := redis.Int64(p.do(ctx, "EVAL", "return 7", 0))
	switch {
	case err != nil:
		return Fail, "EVAL is refused: " + err.Error(), "grant +eval +evalsha +script|load to the users of the locks"
	case n != 7:
		return Fail, "EVAL answers nonsense", "is this a Redis server?"
	}
	return Pass, "EVAL works", ""
}

// lockName is a key that the rights are tried on: one of the deployment's if a pattern is given.
func (p *patient) lockName() string {
	if p.opts.Match == "" {
		return "lock:lockmigrate-doctor"
	}
	return strings.NewReplacer("*", "lockmigrate-doctor", "?", "x").Replace(p.opts.Match)
}

func rights(ctx context.Context, p *patient) (Verdict, string, string) {
	key := p.lockName()
	var denied []string
	for _, c := range [][]any{
		{"GET", key}, {"SET", key, "v", "NX", "PX", "1000"}, {"DEL", key}, {"PEXPIRE", key, "1000"}, {"PTTL", key}, {"TIME"}, {"TYPE", key},
		{"EVAL", "return 1", "1", key}, {"EVALSHA", "x", "1", key}, {"SETNX", key, "v"}, {"GETSET", key, "v"}, {"WATCH", key}, {"MULTI"},
		{"ZADD", key, "1", "m"}, {"ZRANGE", key, "0", "1"}, {"ZREM", key, "m"}, {"ZSCORE", key, "m"}, {"ZRANK", key, "m"}, {"ZPOPMIN", key},
		{"MGET", key}, {"EXISTS", key},
	} {
		allowed, known, _ := p.may(ctx, c...)
		if !known {
			return skip("ACL DRYRUN is refused, or the server is older than 7.0")
		}
		if !allowed && !strings.Contains(strings.Join(denied, " "), c[0].(string)) {
			denied = append(denied, c[0].(string))
		}
	}
	if len(denied) > 0 {
		return Fail, fmt.Sprintf("user %s may not use %s on %q", p.user, strings.Join(denied, " "), key),
			fmt.Sprintf("ACL SETUSER %s +%s", p.user, strings.ToLower(strings.Join(denied, " +")))
	}
	return Pass, fmt.Sprintf("user %s may use what the locks send", p.user), ""
}

func rightsKeys(ctx context.Context, p *patient) (Verdict, string, string) {
	key := p.lockName()
	var denied []string
	for _, k := range []string{protocol.GuardKey(key), protocol.FenceKey(key)} {
		allowed, known, _ := p.may(ctx, "SET", k, "v")
		if !known {
			return skip("ACL DRYRUN is refused, or the server is older than 7.0")
		}
		if !allowed {
			denied = append(denied, k)
		}
	}
	if len(denied) > 0 {
		return Fail, fmt.Sprintf("user %s may not write %q", p.user, denied), "grant the pattern of the accompanying keys too, e.g. ~{lock:*"
	}
	return Pass, "the accompanying keys may be written", ""
}

func rightsChannels(ctx context.Context, p *patient) (Verdict, string, string) {
	for _, c := range [][]any{{"SUBSCRIBE", "__redis__:invalidate"}, {"PUBLISH", "lockmigrate:x", "m"}} {
		allowed, known, _ := p.may(ctx, c...)
		if !known {
			return skip("ACL DRYRUN is refused, or the server is older than 7.0")
		}
		if !allowed {
			return Warn, fmt.Sprintf("user %s may not use %s on %s", p.user, c[0], c[1]), fmt.Sprintf("ACL SETUSER %s &__redis__:invalidate &lockmigrate:*; until then waiters poll", p.user)
		}
	}
	if allowed, _, _ := p.may(ctx, "PUBSUB", "NUMSUB", "lockmigrate:x"); !allowed {
		return Warn, fmt.Sprintf("user %s may not use PUBSUB NUMSUB", p.user),
			fmt.Sprintf("ACL SETUSER %s +pubsub|numsub; until then a waiter whose process has died is handed the lock, and keeps it for modern's Claim", p.user)
	}
	return Pass, "channels may be used", ""
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
	list, _ := redis.String(p.do(ctx, "CLIENT", "LIST"))
	others := 0
	for line := range strings.Lines(list) {
		if strings.Contains(line, " cmd=monitor ") {
			others++
		}
	}
	allowed, known, _ := p.may(ctx, "MONITOR")
	switch {
	case known && !allowed:
		return Warn, fmt.Sprintf("user %s may not use MONITOR", p.user), fmt.Sprintf("ACL SETUSER %s +monitor for the time of the migration", p.user)
	case others > 0:
		return Warn, fmt.Sprintf("%d other clients run MONITOR already", others), "each may cost a large part of the throughput; end them"
	case !known:
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
	list, err := redis.String(p.do(ctx, "CLIENT", "LIST"))
	if err != nil {
		return skip("CLIENT LIST is refused")
	}
	names := map[string]int{}
	for line := range strings.Lines(list) {
		user := "default"
		if _, after, found := strings.Cut(line, " user="); found {
			user, _, _ = strings.Cut(after, " ")
		}
		names[user]++
	}
	var parts []string
	for n, c := range names {
		parts = append(parts, fmt.Sprintf("%s (%d)", n, c))
	}
	found := "connected as " + strings.Join(sorted(parts), ", ")
	if len(names) == 1 && names["default"] > 1 {
		return Warn, found, "give new services a user of their own: then the default user can be fenced"
	}
	return Pass, found, ""
}

func clock(_ context.Context, p *patient) (Verdict, string, string) {
	if !p.clockOK {
		return skip("TIME is refused")
	}
	off := p.offset.Abs()
	direction := "ahead of"
	if p.offset < 0 {
		direction = "behind"
	}
	found := fmt.Sprintf("this host is %v %s the server, give or take %v", off.Round(100*time.Microsecond), direction, (p.trip / 2).Round(10*time.Microsecond))
	const hint = "let chrony or ntpd discipline both clocks; legacy locks here start or end by that much too early"
	switch {
	case off > time.Second:
		return Fail, found, hint
	case off > 100*time.Millisecond+p.trip:
		return Warn, found, hint
	}
	return Pass, found, ""
}

func latency(_ context.Context, p *patient) (Verdict, string, string) {
	if !p.clockOK {
		return skip("TIME is refused")
	}
	found := fmt.Sprintf("%v for a round trip at best", p.trip.Round(10*time.Microsecond))
	if p.trip > 50*time.Millisecond {
		return Warn, found, "choose TTLs of several seconds, and run services near their Redis"
	}
	return Pass, found, ""
}
