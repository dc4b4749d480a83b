package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// checks are the questions, in the order of a first visit: is it the right server, can it keep locks, may we
// work there, is its clock right, what lies on it.
func checks(o Options) []check {
	list := []check{
		{"version", "the bridge and the stages need Redis 3.2, client tracking and ACL 6.0, a fence with preview 7.0", version},
		{"role", "a replica refuses writes, or keeps a lock that its master never saw", role},
		{"cluster-mode", "in a cluster a lock's key has one master; a plain URL sees only a part of the keys", clusterMode},
		{"commands", "managed servers rename or disable commands; each is used by the locks or the tools", commands},
		{"eviction", "a key that is evicted is a lock that two can hold", eviction},
		{"memory", "a server that is out of memory refuses to set locks", memory},
		{"persistence", "locks that are not on disk are gone after a restart, while their holders still work", persistence},
		{"saving", "a server whose last save failed refuses writes", saving},
		{"replication", "replication is asynchronous: after a failover the new master may not know the last locks (lost-update)", replication},
		{"exposure", "any client that can connect can delete a lock", exposure},
		{"scripting", "the bridge and the token locks decide in server scripts", scripting},
		{"tracking", "without client tracking nobody hears a legacy client's DEL: waiters poll", tracking},
		{"monitor", "observe and verify attribute traffic by MONITOR", monitorRight},
		{"acl-log", "only ACL LOG names who runs into a fence", aclLog},
		{"users", "a fence denies commands to users: legacy and new clients need different ones", users},
		{"clock", "a legacy value is compared with this host's clock by legacy clients here; its skew is theirs", clock},
		{"dialects", "two dialects on one key read each other's live locks as expired, or never", ofKeys((*sample).dialects)},
		{"ghosts", "an expired legacy value blocks nobody of its own dialect, but token locks wait for it for ever", ofKeys((*sample).ghostKeys)},
		{"tokens-without-ttl", "a token without TTL stays for ever when its holder crashes", ofKeys((*sample).tokensWithoutTTL)},
		{"databases", "commandstats and MONITOR count all databases together: evidence about one is evidence about all", databases},
	}
	for _, name := range o.Uses {
		use, ok := FindUse(name)
		if ok {
			list = append(list, check{"rights-" + strings.ReplaceAll(name, " ", "-"), "a right that is missing shows when a lock is taken, waited for or given back; the keys beside the lock's need rights too", rightsOf(use)})
		}
	}
	return list
}

// DefaultUses are the uses on the way over: what a service needs from the first stage to package modern.
var DefaultUses = []string{"legacy", "compat Namespace legacy", "compat Namespace bridge", "compat Namespace modern", "modern"}

// essential are the checks that a fit deployment has to pass, besides those of rights: without an answer to one of
// them nothing is said about the deployment.
var essential = []string{"reached", "version", "role", "cluster-mode", "eviction", "scripting", "clock"}

func version(_ context.Context, p *patient) (Verdict, string, string) {
	is := servers.Of(p.info)
	if is.Version == "" {
		return p.noInfo()
	}
	column, known := is.RangeOf()
	if !known {
		return Warn, is.String(), "nobody has tried this project on it: docs/servers.md lists the servers that it is tried on"
	}
	if bridge, _ := servers.Find(servers.Bridge); !bridge.At(column).How.Usable() {
		return Fail, is.String(), "upgrade to 3.2 or later: before, " + bridge.At(column).Note + ", which the bridge and the stages do"
	} else if bridge.At(column).How == servers.Polls {
		return Warn, is.String(), "upgrade to 6.0 or later for wake-ups by client tracking and for users with rights of their own"
	}
	if fence, _ := servers.Find(servers.Fence); fence.At(column).How == servers.Partly {
		return Warn, is.String(), "upgrade to 7.0 or later to fence by key pattern, and to preview it"
	}
	return Pass, is.String(), ""
}

func role(_ context.Context, p *patient) (Verdict, string, string) {
	switch p.info["role"] {
	case "master":
		return Pass, "a master", ""
	case "slave":
		hint := fmt.Sprintf("name the master in the URL: %s:%s", p.info["master_host"], p.info["master_port"])
		if p.info["slave_read_only"] == "0" {
			return Fail, "a writable replica: locks set here are on no other server", hint
		}
		return Fail, "a read-only replica", hint
	default:
		return p.noInfo()
	}
}

func clusterMode(ctx context.Context, p *patient) (Verdict, string, string) {
	on, ok := p.number("cluster_enabled")
	switch {
	case !ok && strings.HasPrefix(p.info["redis_version"], "2."):
		return Pass, "no cluster: there is none before 3.0", ""
	case !ok:
		return p.noInfo()
	case on == 1 && !strings.Contains(p.end.String(), "+cluster"):
		return Fail, "a node of a cluster, addressed alone", "use redis+cluster:// in the URL"
	case on == 1:
		state, _ := redis.String(p.do(ctx, "CLUSTER", "INFO")) // without the right the checks of keys tell
		if now := endpoint.InfoOf(state)["cluster_state"]; now != "" && now != "ok" {
			return Fail, "a cluster, and this node says that its state is " + now + ": it takes no lock", "see CLUSTER INFO and CLUSTER NODES there: which master is down?"
		}
		return Pass, "a cluster, addressed as one", ""
	default:
		return Pass, "no cluster", ""
	}
}

func eviction(_ context.Context, p *patient) (Verdict, string, string) {
	policy, limit := p.info["maxmemory_policy"], p.info["maxmemory"]
	if policy == "" {
		policy, limit = p.config["maxmemory-policy"], p.config["maxmemory"]
	}
	if policy == "" {
		return p.noInfo()
	}
	found := fmt.Sprintf("maxmemory-policy %s, maxmemory %s", policy, limit)
	const hint = "CONFIG SET maxmemory-policy noeviction, or keep locks on a server of their own"
	switch {
	case policy == "noeviction":
		return Pass, found, ""
	case limit == "0":
		return Warn, found + " (no limit: nothing is evicted until somebody sets one)", hint
	case strings.HasPrefix(policy, "allkeys"):
		return Fail, found, hint
	default: // volatile-*: keys with a TTL, which bridge and token locks have
		return Fail, found + ": keys with a TTL are evicted, as all new locks have one", hint
	}
}

func memory(_ context.Context, p *patient) (Verdict, string, string) {
	used, ok1 := p.number("used_memory")
	limit, ok2 := p.number("maxmemory")
	switch {
	case !ok1 || !ok2:
		return p.noInfo()
	case limit == 0:
		return Pass, fmt.Sprintf("%d MiB used, no limit", used>>20), ""
	}
	found := fmt.Sprintf("%.1f of %.1f MiB used", float64(used)/(1<<20), float64(limit)/(1<<20))
	outside, _ := p.number("mem_not_counted_for_evict") // buffers for replicas and the append-only file
	switch {
	case used-outside >= limit:
		return Fail, found + ": every SETNX and SET is refused (OOM)", "raise maxmemory, or remove keys"
	case used > limit*9/10:
		return Warn, found, "raise maxmemory, or remove keys"
	}
	return Pass, found, ""
}

func persistence(_ context.Context, p *patient) (Verdict, string, string) {
	aof, ok := p.number("aof_enabled")
	fsync, save := p.config["appendfsync"], p.config["save"]
	switch {
	case !ok:
		return p.noInfo()
	case aof == 1 && fsync == "always":
		return Pass, "append-only file, synced at every write", ""
	case aof == 1:
		return Warn, "append-only file, synced " + cmp.Or(fsync, "at an unknown interval"), "after a crash the locks of the last second may be gone: do not restart within the longest lease, or set appendfsync always"
	case save != "":
		return Warn, "snapshots only (save " + save + ")", "after a crash all locks since the last snapshot are gone: wait for the longest lease before clients may connect again"
	}
	return Warn, "neither append-only file nor snapshots", "after a restart all locks are gone: wait for the longest lease before clients may connect again"
}

func saving(_ context.Context, p *patient) (Verdict, string, string) {
	status := p.info["rdb_last_bgsave_status"]
	switch {
	case status == "":
		return p.noInfo()
	case status != "ok" && p.config["stop-writes-on-bgsave-error"] != "no":
		return Fail, "the last save failed, and stop-writes-on-bgsave-error is on: every write is refused", "see the server's log for the disk's trouble"
	case p.info["aof_enabled"] == "1" && p.info["aof_last_write_status"] == "err":
		return Fail, "the append-only file cannot be written: every write is refused", "see the server's log for the disk's trouble"
	case status != "ok", p.info["aof_last_write_status"] == "err":
		return Warn, "the last save failed", "see the server's log for the disk's trouble"
	}
	return Pass, "the last save went well, or none was due", ""
}

func replication(_ context.Context, p *patient) (Verdict, string, string) {
	n, ok := p.number("connected_slaves")
	wanted := cmp.Or(p.config["min-replicas-to-write"], p.config["min-slaves-to-write"]) // the second before Redis 5
	least, _ := strconv.ParseInt(wanted, 10, 64)
	good, asked := p.number("min_slaves_good_slaves") // INFO tells it where writes need replicas
	switch {
	case !ok:
		return p.noInfo()
	case asked && good < max(1, least):
		return Fail, fmt.Sprintf("NOREPLICAS: %d good replicas, and writes need min-replicas-to-write %s", good, cmp.Or(wanted, "(not readable)")), "no lock can be taken or released: connect a replica, or set min-replicas-to-write 0"
	case n == 0:
		return Pass, "no replica: no failover can lose a lock, and none can save it", ""
	case asked:
		return Warn, fmt.Sprintf("%d replicas, min-replicas-to-write %s", n, cmp.Or(wanted, "(not readable)")), "it bounds how much a failover can lose, but not to nothing: order writes by the fencing token"
	}
	return Warn, fmt.Sprintf("%d replicas, written to without waiting for them", n), "order writes by the fencing token; or lock on a quorum of independent servers"
}

func exposure(ctx context.Context, p *patient) (Verdict, string, string) {
	rules, err := redis.Strings(p.do(ctx, "ACL", "LIST"))
	if err != nil {
		return skip("ACL LIST is refused, or the server is older than 6.0")
	}
	bind := p.config["bind"]
	loopback := bind != "" && !strings.ContainsFunc(strings.NewReplacer("127.0.0.1", "", "-::1", "", "::1", "", " ", "").Replace(bind), func(rune) bool { return true })
	for _, r := range rules {
		if strings.HasPrefix(r, "user default on") && strings.Contains(r, "nopass") {
			if loopback {
				return Pass, "no password, but it listens on the loopback only", ""
			}
			return Warn, "the default user needs no password", "set one: anybody who reaches the port can DEL a lock, and no fence holds"
		}
	}
	return Pass, "the default user needs a password or is off", ""
}
