package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redis/servers"
)

// reading is one look at a server's INFO.
type reading struct {
	runID, version, role string // the version is the Redis that the server can stand for
	is                   string // what it is, such as Valkey 9.0.0
	history, before      string // its replication id, and the one that it had before it became the master

	replicas, syncs int64 // that are connected, and how often one began to follow

	cluster bool
	stats   map[string]endpoint.Calls // by command, in lower case
	totals  map[string]int64          // other counts that only a restart or RESETSTAT sets back
	errors  map[string]int64          // replies by their first word, from 6.2 on
	rejects bool                      // it has rejected_calls
	refuses string                    // why it refuses writes at the moment
	limited bool                      // it tells its memory's limit: before 3.2 INFO does not
	used    int64                     // bytes
	cpu     float64                   // seconds of its main thread
	at      time.Time
	text    string            // of INFO, to read it again
	mark    string            // that was sent before it
	clients map[string]listed // right before that, by address; with OnlyMembers
}

// totals are the counts that are compared beside those of the commands.
var totals = map[string]bool{
	"total_commands_processed": true, "total_connections_received": true, "total_net_input_bytes": true, "total_net_output_bytes": true,
	"keyspace_hits": true, "keyspace_misses": true, "expired_keys": true, "evicted_keys": true,
}

// readInfo reads the reply of INFO.
func readInfo(text string) reading {
	r := reading{stats: map[string]endpoint.Calls{}, totals: map[string]int64{}, errors: map[string]int64{}, at: time.Now(), text: text}
	field := endpoint.InfoOf(text)
	for name, value := range field {
		if command, ok := strings.CutPrefix(name, "cmdstat_"); ok {
			c := endpoint.CallsOf(value)
			r.stats[strings.ToLower(command)] = c
			r.rejects = r.rejects || c.Counts
			continue
		}
		if kind, ok := strings.CutPrefix(name, "errorstat_"); ok {
			_, number, _ := strings.Cut(value, "count=")
			r.errors[kind], _ = strconv.ParseInt(number, 10, 64)
			continue
		}
		if totals[name] {
			r.totals[name], _ = strconv.ParseInt(value, 10, 64)
		}
	}
	r.runID, r.version, r.role = field["run_id"], field["redis_version"], field["role"]
	r.is = servers.Of(field).String()
	r.history, r.before = field["master_replid"], strings.Trim(field["master_replid2"], "0") // zeros: it had none
	number := func(name string) int64 { n, _ := strconv.ParseInt(field[name], 10, 64); return n }
	r.replicas, r.syncs = number("connected_slaves"), number("sync_full")+number("sync_partial_ok")
	r.cluster = field["cluster_enabled"] == "1"
	r.refuses = refusal(field)
	_, r.limited = field["maxmemory"]
	r.used = number("used_memory")
	r.cpu = endpoint.MainCPU(field)
	return r
}

// refusal tells why a server refuses writes at the moment, empty if nothing in INFO says so.
func refusal(field map[string]string) string {
	number := func(name string) int64 { n, _ := strconv.ParseInt(field[name], 10, 64); return n }
	switch {
	case field["loading"] == "1":
		return "it is loading its data"
	case number("maxmemory") > 0 && number("used_memory") >= number("maxmemory") && field["maxmemory_policy"] == "noeviction":
		return memoryFull
	case field["rdb_last_bgsave_status"] != "" && field["rdb_last_bgsave_status"] != "ok":
		return "its last snapshot failed"
	case field["min_slaves_good_slaves"] == "0": // INFO has it where writes need replicas
		return "it has no replica, and writes need one"
	case field["aof_enabled"] == "1" && field["aof_last_write_status"] != "ok":
		return "its append-only file cannot be written"
	}
	return ""
}

// fullMemory tells whether a server whose INFO does not tell the limit of its memory refuses writes, by the replies to CONFIG GET
// maxmemory and maxmemory-policy.
func fullMemory(used int64, limit, policy []string, err error) string {
	if err != nil || len(limit) != 2 || len(policy) != 2 {
		return "neither INFO nor CONFIG GET tells whether its memory was full"
	}
	if most, err := strconv.ParseInt(limit[1], 10, 64); err != nil || most > 0 && used >= most && policy[1] == "noeviction" {
		return memoryFull
	}
	return ""
}

const memoryFull = "its memory is full"

// diverts are commands that keep others from this server, or change keys though COMMAND does not say that they write.
var diverts = []string{"client|pause", "failover", "replicaof", "slaveof", "debug"}

// slotReads are the subcommands of CLUSTER that leave each slot with its owner. MIGRATION asks as well: what it begins, both nodes count as SYNCSLOTS.
var slotReads = []string{
	"count-failure-reports", "countkeysinslot", "getkeysinslot", "getslotmigrations", "help", "info", "keyslot", "links", "migration", "myid", "myshardid",
	"nodes", "replicas", "shards", "slaves", "slot-stats", "slots",
}

// slotCommands counts the commands that may have changed which node serves a slot.
func (r reading) slotCommands() (n int64) {
	for name, c := range r.stats {
		if sub, is := strings.CutPrefix(name, "cluster|"); is && !slices.Contains(slotReads, sub) {
			n += c.Calls
		}
	}
	return n
}

// canary is the command of ours that the counters prove themselves with: each look sends one before INFO.
const canary = "echo"

// broken tells why two readings, one after the other, cannot be compared; empty if they can. Every count only
// rises, and that of our own ECHO rises with every look: a restart or CONFIG RESETSTAT in between shows, also on
// a server where little was counted before it. A server that was a replica for a moment shows by its replication
// id: what clients sent to the master of that moment was not counted here. An id that changes because no replica
// is left has no predecessor. A replica that left may be another master now.
func broken(before, after reading) string {
	switch {
	case after.runID != before.runID:
		return "it restarted or was replaced: another run id"
	case after.role != before.role:
		return "its role changed to " + after.role
	case before.history != "" && after.history != before.history && after.before != before.before:
		return "another server was the master in between: its replication id changed"
	case after.stats["config|resetstat"].Calls != before.stats["config|resetstat"].Calls:
		return "its counters were reset (CONFIG RESETSTAT)"
	case after.stats[canary].Calls < before.stats[canary].Calls+1:
		if before.stats[canary].Calls > 0 && after.stats[canary].Calls > 0 {
			return "its counters were reset (CONFIG RESETSTAT): the count of our own ECHO fell"
		}
		return "INFO does not count our own ECHO: this server has no commandstats"
	}
	for name, was := range before.stats {
		if is := after.stats[name]; is.Calls < was.Calls || is.Rejected < was.Rejected || is.Failed < was.Failed {
			return fmt.Sprintf("its counters were reset (CONFIG RESETSTAT): the count of %s fell", name)
		}
	}
	for name, was := range before.totals {
		if after.totals[name] < was {
			return fmt.Sprintf("its counters were reset (CONFIG RESETSTAT): %s fell", name)
		}
	}
	for _, name := range diverts {
		if n := after.stats[name].Calls - before.stats[name].Calls; n > 0 {
			return fmt.Sprintf("%s ran: commands may have been held back, or have gone to another server, or keys have changed unseen", strings.ToUpper(strings.ReplaceAll(name, "|", " ")))
		}
	}
	if lost := after.syncs - before.syncs - (after.replicas - before.replicas); lost > 0 {
		return fmt.Sprintf("it lost a replica (connected_slaves fell from %d to %d, %s new): clients may use that one as their master", before.replicas, after.replicas, nouns(after.syncs-before.syncs, "connection"))
	}
	return ""
}

// redirects are the refusals with which a node of a cluster sends a client to another one, where its command counts.
var redirects = []string{"MOVED", "ASK", "TRYAGAIN"}

// refusals are those that keep a command from running. What ACL rules deny within a script is an ERR like many
// others: ACL LOG has to tell that.
var refusals = []string{"NOPERM", "NOAUTH", "OOM", "MISCONF", "NOREPLICAS", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY"}

// refused tells how many replies between two readings were redirects, and how many were refusals of other kinds.
func refused(before, after reading) (redirected, others int64) {
	for _, kind := range redirects {
		redirected += max(0, after.errors[kind]-before.errors[kind])
	}
	for _, kind := range refusals {
		others += max(after.errors[kind]-before.errors[kind], before.errors[kind]-after.errors[kind])
	}
	return redirected, others
}
