package scripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

func words(line string) []any { return boxed(strings.Fields(line)) }

func boxed(list []string) []any {
	all := make([]any, len(list))
	for i, w := range list {
		if all[i] = strings.ReplaceAll(w, "_", " "); w == "-" {
			all[i] = ""
		}
	}
	return all
}

// What is enough to give back, to extend, and to write another value: a script has no right to want more.
const (
	mayFree  = `for i = 1, ARGV[2] do local k = KEYS[i]; redis.call('GET', k); redis.call('DEL', k) end return 1`
	mayKeep  = `for i = 1, ARGV[2] do local k = KEYS[i]; redis.call('GET', k); redis.call('PEXPIRE', k, 10000) end return 1`
	mayPut   = `for i = 1, ARGV[2] do local k = KEYS[i]; redis.call('GET', k); redis.call('PTTL', k); redis.pcall('PERSIST', k); redis.call('SET', k, ARGV[1]) end return 1`
	mayHFree = `redis.call('HEXISTS', KEYS[1], ARGV[1]); redis.call('DEL', KEYS[1]); return 1`
	mayHKeep = `redis.call('HEXISTS', KEYS[1], ARGV[1]); redis.call('PEXPIRE', KEYS[1], 10000); return 1`
)

func situations() []situation {
	const (
		key, guard, fence, yield = "lock", "{lock}:guard", "{lock}:fence", "{lock}:yield"
		queue, share             = "{lock}:queue", "{lock}:share"
		ours, theirs             = "5123456789012345678", "6123456789012345678"
		ttl, gap, long           = 10_000, 600, 60_000
		record, members          = "record", "{record}:members"
	)
	ms := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).UnixMilli(), 10) }
	later, past := ms(time.Hour), ms(-time.Hour)
	set := func(key, value string) string { return "SET " + key + " " + value + " PX 20000" }
	held := []string{set(key, ours), set(guard, ours)}
	with := func(lists ...[]string) []string { return slices.Concat(lists...) }
	gaps := func(mode, owed string) string { // a state in which the next release begins a gap
		ago := ms(-time.Minute)
		return set(yield, mode+"_"+ago+"_600_"+owed+"_100_0_"+ago+"_0_600_-1_0")
	}
	kept := []string{gaps("0", "100"), set(fence, "1700000000000000")}
	begins := strings.Replace(gaps("0", "100"), "_100_0_", "_100_-2_", 1) // whatever the count of SETNX says

	acquire := func(name, code string, before []string, change ...func([]any) []any) situation {
		args := []any{ours, ttl, "1000 ms plain 600", 0, long}
		for _, f := range change {
			args = f(args)
		}
		return situation{script: scripts.BridgeAcquire, name: name, code: code, before: before,
			keys: []string{key, guard, yield, queue, fence}, args: args, locks: 2, ours: ours}
	}
	const entry, bridge, gone = "1000 0 1 heard " + ours, "1000_0_1_heard_" + theirs, "1000_0_0_nobody_" + theirs
	ourEntry := strings.ReplaceAll(entry, " ", "_")
	queued := func(args []any) []any { return append(args, entry, long, "") }
	bounded := func(args []any) []any { args[3] = later; return args }
	refused := func(args []any) []any { args[2] = "-1 ms plain 600"; return args }
	release := func(name, code string, before []string, args ...any) situation {
		return situation{script: scripts.BridgeRelease, name: name, code: code, before: before,
			keys: []string{key, guard, yield, queue, fence}, args: append([]any{ours, gap}, args...), locks: 2, ours: ours, trial: mayFree}
	}
	renew := func(name, code string, before []string) situation {
		s := situation{script: scripts.BridgeRenew, name: name, code: code, before: before,
			keys: []string{key, guard, fence}, args: []any{ours, ttl, long, later}, locks: 2, ours: ours}
		if code == "1" {
			s.trial = `redis.call('TIME') ` + mayKeep
		}
		return s
	}
	settle := func(name, code string, before ...string) situation {
		s := situation{script: scripts.BridgeSettle, name: name, code: code, before: before,
			keys: []string{key, guard}, args: []any{ours, ttl, "1000 ms plain 0", later}, locks: 2, ours: ours}
		if code == "1" {
			s.trial = `redis.call('TIME') ` + mayKeep
		}
		return s
	}
	take := func(name, code string, counter string, counterTTL int, before ...string) situation {
		return situation{script: scripts.ModernTake, name: name, code: code, before: before,
			keys: []string{key, counter}, args: []any{ours, ttl, counterTTL}, locks: 1, ours: ours}
	}
	first := func(name, code string, before ...string) situation {
		s := take(name, code, key, 0, before...)
		s.args = append(s.args, 1)
		return s
	}
	const sides, words = "{lock}:sidecar", "me %s " + ours + " 10000 1800000000000 0 1000 500 0 ms plain ms plain 100 300 7 1800000000000"
	knows := func(field string) []string {
		return []string{"HSET " + sides + " me " + field, "PEXPIRE " + sides + " 60000"}
	}
	granted := with(held, knows(ours+"_1800000000000_1000_-_0_0_0_1800000000000"))
	sidecar := func(script *scripts.Script, name, code, word, trial string, before []string) situation {
		return situation{script: script, name: name, code: code, before: before, keys: []string{key, guard, sides, queue, yield}[:len(script.Keys)], args: []any{word},
			locks: 2, ours: ours, trial: trial, proof: sides}
	}
	taking := func(name, code, form string, before ...string) situation {
		return sidecar(scripts.SidecarTake, name, code, fmt.Sprintf(words, form), "", before)
	}
	run := func(name, code string, before []string, args ...any) situation {
		return situation{script: scripts.SidecarRun, name: name, code: code, before: before, keys: []string{key, guard, sides, queue}, args: append(args, "me 1000 2000 refuse .1")}
	}
	const me, next = "1000 0 0 heard " + ours, "1000_0_0_heard_" + theirs
	enqueue := func(name, code string, plain bool, before ...string) situation {
		s := situation{script: scripts.ModernQueue, name: name, code: code, before: before,
			keys: []string{key, queue, guard}, args: []any{ours, ttl, me, long}, locks: 1, ours: ours}
		if !plain {
			s.keys, s.args = append(s.keys, fence, share), append(s.args, long, 200)
		}
		return s
	}
	mine := strings.ReplaceAll(me, " ", "_")
	giveBack := func(name, code string, plain bool, before ...string) situation {
		s := situation{script: scripts.ModernRelease, name: name, code: code, before: with([]string{set(key, ours)}, before),
			keys: []string{key, queue, guard}, args: []any{ours}, locks: 1, ours: ours, trial: mayFree}
		if !plain {
			s.keys, s.args = append(s.keys, fence, share), append(s.args, long, me, 200)
		}
		return s
	}
	one := func(script *scripts.Script, name, code, trial string, before []string, keys []string, args ...any) situation {
		return situation{script: script, name: name, code: code, before: before, keys: keys, args: args, locks: 1, ours: ours, trial: trial}
	}
	hash := []string{"HSET lock " + ours + " 1", "PEXPIRE lock 20000"}
	twice := []string{"HSET lock " + ours + " 2", "PEXPIRE lock 20000"}
	channel := "redisson_lock__channel:{lock}"
	other := func(script *scripts.Script, name, code string, before []string, keys []string, args ...any) situation {
		return situation{script: script, name: name, code: code, before: before, keys: keys, args: args}
	}
	member := `{"seq":1,"epoch":1,"stage":-1,"lo":0,"hi":0,"seen":1,"ends":` + later + `,"longest":1000,"skew":0,"info":"{}"}`
	recorded := []string{"HSET record epoch 1 stage 0 since 1 patterns [] clients {\"dialect\":\"jedis-ms\",\"shortest_ms\":30000}", "HSET {record}:members m " + member}
	report := []any{"n", 5, 1000, 1, 0, -1, -1, 1000, 0, "{}", later, ""}
	listed := []string{"HMSET list - word orders {}"}

	return []situation{
		acquire("free", "1", nil),
		acquire("free, kept before", "1", kept),
		acquire("free, in the queue", "1", []string{"ZADD " + queue + " 1 " + ourEntry + " 2 " + bridge}, queued),
		acquire("free, bounded", "1", nil, bounded),
		acquire("free, after a gap of no use", "1", []string{gaps("1", "0")}, queued),
		acquire("left to old clients once more", "0", []string{gaps("2", "200")}, queued),
		acquire("another's turn", "0", []string{"ZADD " + queue + " 1 " + bridge}, queued),
		acquire("a token client's turn", "0", []string{"ZADD " + queue + " 1 " + next}, queued),
		acquire("held by a bridge holder", "0", []string{set(key, theirs), set(guard, theirs)}, queued),
		acquire("held by a legacy client", "0", []string{"SET lock " + later, gaps("1", "0")}, queued),
		acquire("an expired legacy value", "2", []string{"SET lock " + past}),
		acquire("an expired legacy value, in the queue", "2", with([]string{"SET lock " + past}, kept), queued),
		acquire("a ghost", "-2", []string{"SET lock " + past}, refused),
		acquire("ours already", "3", held),
		acquire("the guard ours already, the key of a legacy client", "0", []string{set(guard, ours), "SET lock " + later}),

		release("held", "1", held, 0, 0, 0, 0),
		release("held, and a gap begins", "1", with(held, kept), 0, 100, 0, 0),
		release("held, a bridge client waits", "3", with(held, []string{"ZADD " + queue + " 1 " + bridge}), 1, 0, 0, 0, long),
		release("held, a token client waits", "3", with(held, []string{"ZADD " + queue + " 1 " + next, set(fence, "1700000000000000")}), 1, 0, 0, 0, long),
		release("held, one who is gone waits", "1", with(held, []string{"ZADD " + queue + " 1 " + gone}), 1, 0, 0, 0, long),
		release("held, somebody waits, and a gap begins", "1", with(held, []string{begins}, []string{"ZADD " + queue + " 1 " + bridge}), 1, 100, 2, 0, long),
		release("given up before it has settled", "1", with(held, []string{"ZADD " + queue + " 1 " + bridge}), 0, 0, 0, 0),
		release("held, our entry still there", "1", with(held, []string{"ZADD " + queue + " 1 " + ourEntry + " 2 " + gone}), 0, 0, 0, 0, 0, entry),
		release("the key is gone", "2", []string{set(guard, ours)}, 0, 0, 0, 0),
		release("displaced", "-1", []string{set(guard, ours), "SET lock " + later}, 0, 0, 0, 0),

		renew("held", "1", with(held, kept)),
		renew("the key is gone", "2", []string{set(guard, ours)}),
		renew("the guard is gone", "2", []string{set(key, ours)}),
		renew("displaced", "-1", []string{set(guard, ours), "SET lock " + later}),

		settle("ours", "1", held...),
		settle("gone", "2", set(guard, ours)),
		settle("expired again", "2", set(guard, ours), "SET lock "+past),
		settle("overwritten, withdrawn", "-1", set(guard, ours), "SET lock "+later),

		take("free", "1", fence, long),
		first("free, the first acquisition", "1"),
		first("held, the first acquisition", "0", set(key, theirs)),
		take("free, counted before", "1", fence, long, set(fence, "1700000000000000")),
		take("free, no counter", "1", key, 0),
		take("ours already", "1", fence, long, set(key, ours)),
		take("held", "0", fence, long, set(key, theirs)),

		one(scripts.ModernExtend, "held", "1", mayKeep, []string{set(key, ours), set(fence, "1700000000000000")}, []string{key, fence}, ours, ttl, long),
		one(scripts.ModernExtend, "lost", "0", "", []string{set(key, theirs)}, []string{key, fence}, ours, ttl, long),

		enqueue("free", "1", true),
		enqueue("free, our turn", "1", true, "ZADD "+queue+" 1 "+mine),
		enqueue("free, the turn of another", "0", true, "ZADD "+queue+" 1 "+next),
		enqueue("free, the turn of a bridge client", "0", true, "ZADD "+queue+" 1 "+bridge),
		enqueue("free, the turn of one who is gone", "1", true, "ZADD "+queue+" 1 "+gone),
		enqueue("held", "0", true, set(key, theirs)),
		enqueue("held, in line already", "0", true, set(key, theirs), "ZADD "+queue+" 1 "+mine, "PEXPIRE "+queue+" 20000"),
		enqueue("ours already", "1", true, set(key, ours), "ZADD "+queue+" 1 "+mine),
		enqueue("free, counted", "1", false),
		enqueue("free, our turn, counted", "1", false, "ZADD "+queue+" 1 "+mine, set(fence, "1700000000000000")),
		enqueue("free, the turn of another, counted", "0", false, "ZADD "+queue+" 1 "+next, "PEXPIRE "+queue+" 20000"),
		enqueue("ours already, counted", "1", false, set(key, ours), "ZADD "+queue+" 1 "+mine, "PEXPIRE "+queue+" 20000"),
		enqueue("left to others", "0", false, set(share, later)),
		enqueue("held, counted", "0", false, set(key, theirs)),

		giveBack("alone", "1", true),
		giveBack("somebody waits", "2", true, "ZADD "+queue+" 1 "+next),
		giveBack("a bridge client waits", "2", true, "ZADD "+queue+" 1 "+bridge),
		giveBack("a bridge client waits beside another's guard", "1", true, "ZADD "+queue+" 1 "+bridge, set(guard, theirs)),
		giveBack("one who is gone waits", "1", true, "ZADD "+queue+" 1 "+gone),
		giveBack("garbage waits", "1", true, "ZADD "+queue+" 1 garbage"),
		giveBack("alone, counted", "1", false),
		giveBack("somebody waits, counted", "2", false, "ZADD "+queue+" 1 "+mine+" 2 "+next, set(fence, "1700000000000000")),
		giveBack("the share of others", "1", false, "ZADD "+queue+" 1 "+next, set(share, past)),
		giveBack("the share of others, garbage", "2", false, "ZADD "+queue+" 1 "+next, set(share, "garbage")),

		one(scripts.RedissonTake, "free", "<nil>", "", nil, []string{key}, ttl, ours),
		one(scripts.RedissonTake, "once more", "<nil>", "", hash, []string{key}, ttl, ours),
		one(scripts.RedissonExtend, "held", "1", mayHKeep, hash, []string{key}, ttl, ours),
		one(scripts.RedissonRelease, "held", "1", mayHFree, hash, []string{key}, ours, channel),
		one(scripts.RedissonRelease, "counted twice", "1", mayHFree, twice, []string{key}, ours, channel),

		one(scripts.CompareDel, "held", "1", mayFree, []string{"SET lock " + ours}, []string{key}, ours),
		one(scripts.CompareDel, "held, with a TTL", "1", mayFree, []string{set(key, ours)}, []string{key}, ours),
		one(scripts.CompareSet, "held", "1", mayPut, []string{"SET lock " + ours}, []string{key}, ours, later),
		one(scripts.CompareSet, "held, with a TTL", "1", strings.Replace(mayPut, "'PERSIST', k", "'PEXPIRE', k, 20000", 1), []string{set(key, ours)}, []string{key}, ours, later),
		one(scripts.GatedCompareSet, "held", "1", "", []string{"SET lock " + ours}, []string{key}, ours, later, later),
		one(scripts.GatedCompareSet, "held, with a TTL", "1", "", []string{set(key, ours)}, []string{key}, ours, later, later),
		one(scripts.GatedWrite, "free", "1", "", nil, []string{key, guard}, "SETNX", ours, later),
		one(scripts.GatedWrite, "expired, GETSET", past, "", []string{"SET lock " + past}, []string{key, guard}, "GETSET", ours, later),
		one(scripts.GatedWrite, "expired, by transaction", "OK", "", []string{"SET lock " + past}, []string{key, guard}, "SET", ours, later),
		one(scripts.SweepExpire, "a ghost", "1", "", []string{"SET lock " + past}, []string{key}, ttl, past),
		one(scripts.FenceRaise, "behind", "1700000000000001", "", []string{set(fence, "1700000000000000")}, []string{fence}, "1700000000000001", long),
		one(scripts.SweepExpire, "a ghost, a hash", "1", "", []string{"HSET lock f 1"}, []string{key}, ttl, "f", "1"),

		other(scripts.StageInit, "new", "1", nil, []string{record, members}, 0, "[]", `{"dialect":"jedis-ms","shortest_ms":30000}`, 1, later, "note", "{}"),
		other(scripts.StageInit, "known", "0", recorded, []string{record, members}, 0, "[]", `{"dialect":"jedis-ms","shortest_ms":30000}`, 1, later, "note", "{}"),
		other(scripts.StageJoin, "new", "1", recorded, []string{record, members}, report...),
		other(scripts.StageJoin, "only asks", "2", recorded, []string{record, members}, "n", 5, 1000, 1, 0, -1, -1, 1000, 0, "{}", 0, ""),
		other(scripts.StageLeave, "known", "1", recorded, []string{record, members}, "m", 2, later),
		other(scripts.StageMove, "blocked", "0", recorded, []string{record, members}, 1, 1, 1, "note", "{}"),
		other(scripts.StageMove, "free", "1", recorded[:1], []string{record, members}, 1, 1, 1, "note", "{}"),
		other(scripts.StageShow, "known", "", recorded, []string{record, members}),
		other(scripts.StageSet, "free", "1", recorded[:1], []string{record, members}, 1, "[]", `{"dialect":"jedis-ms","shortest_ms":30000}`, 1, 1, later, "{}"),
		other(scripts.StageSet, "blocked", "0", recorded, []string{record, members}, 1, "[]", `{"dialect":"jedis-ms","shortest_ms":30000}`, 1, 1, later, "{}"),
		other(scripts.StageDelete, "free", "1", recorded[:1], []string{record, members}, 1, 1),
		other(scripts.StageDelete, "blocked", "0", recorded, []string{record, members}, 1, 1),
		other(scripts.StageClaim, "a new entry", "1", listed, []string{"list"}, "word", "next", "other", "{}"),
		other(scripts.StageClaim, "the last entry goes", "1", listed, []string{"list"}, "word", "next", "orders", ""),
		other(scripts.StageClaim, "another list", "0", listed, []string{"list"}, "old word", "next", "other", "{}"),
		other(scripts.StageList, "known", "", listed, []string{"list"}),

		taking("free", "1", "nx"),
		taking("free, SET", "OK", "set"),
		taking("free, GETSET", "<nil>", "getset"),
		taking("held", "0", "nx", set(key, theirs), set(guard, theirs)),
		taking("held, GETSET", "7", "getset", set(key, theirs)),
		taking("held, in the queue", "0", "nx", with([]string{set(key, theirs)}, knows("-_0_0_"+ours+"_0_0_0_"))...),
		taking("handed over", "1", "nx", with([]string{set(key, ours)}, knows("-_0_0_"+ours+"_0_0_0_"))...),
		taking("settled", "1", "nx", with(held, knows("-_0_0_"+ours+"_1_0_0_"))...),
		taking("taken over", "0", "nx", "SET "+key+" "+past),
		taking("another's turn", "0", "nx", "ZADD "+queue+" 5 "+next, "PEXPIRE "+queue+" 50000"),
		sidecar(scripts.SidecarDel, "released", "1", "me 0 100", `redis.call('HGET', KEYS[3], 'me') `+mayFree, granted),
		// One reply for several ends: only what holds for all is checked.
		{script: scripts.SidecarDel, name: "released, the guard stays for a moment", code: "1", before: granted, keys: []string{key, guard, sides, queue, yield}, args: []any{"me 5 100"}},
		{script: scripts.SidecarDel, name: "handed to the next", code: "1", before: with(granted, []string{"ZADD " + queue + " 5 " + next, "ZADD " + queue + " 6 " + gone, "PEXPIRE " + queue + " 50000"}),
			keys: []string{key, guard, sides, queue, yield}, args: []any{"me 0 100"}},
		sidecar(scripts.SidecarDel, "another's", "0", "me 0 100", "", []string{set(key, theirs)}),
		{script: scripts.SidecarDel, name: "overwritten", code: "1", before: with(granted, []string{"SET " + key + " " + later}), keys: []string{key, guard, sides, queue, yield}, args: []any{"me 0 100"}},
		sidecar(scripts.SidecarKeep, "renewed", "1", "me 10000 0", "", with(held, knows(ours+"_0_1000_-_0_0_0_x"))),
		sidecar(scripts.SidecarKeep, "repaired", "2", "me 0 0", "", with([]string{set(guard, ours)}, knows(ours+"_0_1000_-_0_0_0_x"))),
		sidecar(scripts.SidecarKeep, "displaced", "-1", "me 0 0", "", with([]string{set(guard, ours), "SET " + key + " " + later}, knows(ours+"_0_1000_-_0_0_0_x"))),
		{script: scripts.SidecarGet, name: "own", code: "1800000000000", before: granted, keys: []string{key, guard, sides}, args: []any{"me 7 1 ms plain"}},
		{script: scripts.SidecarGet, name: "another's", code: "7", before: []string{set(key, theirs)}, keys: []string{key, guard, sides}, args: []any{"me 7 1 ms plain"}},
		run("own, extended", "1", granted, "PEXPIRE", key, 30000),
		run("own, deleted", "1", granted, "UNLINK", key),
		run("free", "OK", nil, "SET", key, "x", "NX", "PX", 10000),
	}
}
