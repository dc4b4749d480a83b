// Package rights says which rights of a Redis user each package and each command of this project needs: the
// one table that the documents are checked against, that the tests run with, and that doctor tries.
package rights

import (
	"slices"
	"strings"
)

// Kind is what a right is about.
type Kind string

// The kinds.
const (
	Command Kind = "command" // as ACL writes it: get, client|id
	Key     Kind = "key"     // a role: see the roles below
	Channel Kind = "channel" // a pattern
)

// The roles of keys.
const (
	Lock      = "lock"   // the lock's key
	Guard     = ":guard" // the keys beside it
	Fence     = ":fence"
	Yield     = ":yield"
	Queue     = ":queue"
	Record    = ":sidecar"
	Share     = ":share"
	None      = ":none"             // a key that never exists, in the place of a guard
	Namespace = "lockmigrate:{*}:*" // the record and the members of a namespace

	Namespaces = "lockmigrate:namespaces" // the list of them
)

// The channels.
const (
	Wake        = "lockmigrate:wake:*"
	Invalidate  = "__redis__:invalidate"
	RedissonAll = "redisson_lock__channel:*"
	Told        = "lockmigrate:sidecar:*"
)

// Right is one right.
type Right struct {
	Kind    Kind
	Name    string
	Without string // what is lost without it; empty: the operation is refused, and says which right is missing
	Frees   bool   // a release needs it and an acquisition does not: without it the lock stays until its TTL or expiry
}

// Use is one way to use a package, or one command of lockmigrate.
type Use struct {
	Name   string // legacy, modern FenceTTL, lockmigrate scan
	Rights []Right
}

// without says what is lost where a right is missing that nothing depends on.
var without = map[string]string{
	"publish":         "nobody is handed the lock: waiters find it free by tracking or polling",
	"spublish":        "in a cluster, waiters of other clients poll (7.0 or later)",
	"pubsub|numsub":   "a waiter whose process has died is handed the lock and keeps it for its Claim",
	"info":            "counters are not read; a waiter whose process has died is handed the lock and keeps it for its Claim; bridge holders leave gaps for old clients without knowing whether one waits; members do not notice that the server was restarted, and may have lost changes of the stage",
	"subscribe":       "waiters poll",
	"unsubscribe":     "a connection hears of locks that nobody waits for any more",
	"client|id":       "no client tracking: a release by others is found by polling",
	"client|tracking": "no client tracking: a release by others is found by polling",
	"client|setname":  "the connection has no name in CLIENT LIST",
	"ping":            "a connection that broke while idle is found by the next command",
	"type":            "a value of another type than a string is reported without its type",
	"persist":         "on a server that is out of memory a legacy lock cannot be renewed",
	"zrem":            "a waiter that gives up keeps its place until its turn has passed",
	"command|info":    "doctor finds out whether a command is there by sending it with words that it refuses",
	Namespace:         stops,
	Namespaces:        stops,
	"eval":            stops,
	"evalsha":         stops,
	"hgetall":         stops,
	"hmget":           stops,
	"time":            stops,
	Wake:              "waiters are woken by tracking or polling, and nobody is handed the lock",
	Invalidate:        "no client tracking: a release by others is found by polling",
	RedissonAll:       "waiters poll",
	Told:              "a lock that is handed to the service is found at its next attempt, and the sidecar counts no grants",
	"select":          "where the locks are in another database than 0, a sidecar's service gets none",
	"exists":          "a waiter may hear of a release one poll late",
	"pexpire":         "on a server that is out of memory a legacy lock cannot be renewed",
	"pttl":            "a renewal is refused where it has to keep a TTL",
	"get":             "the value that keeps a lock from being taken is not shown",
	"zadd":            "waiters do not queue: the first one to ask gets the lock",
	"zrange":          "waiters do not queue: the first one to ask gets the lock",
	"zrank":           "a waiter looks at the key before it believes that it was handed the lock",
	"zscore":          "waiters do not queue: the first one to ask gets the lock",
	"role":            "a master that has become a replica is found by its refusals",
	"hdel":            "a member that ends is waited for until its lease is over",
	"config|get":      "settings are not checked",
	"acl|list":        "users are not looked at",
	"acl|whoami":      "doctor cannot ask about the rights of its own user; stage rollback cannot check the rules of a member's user",
	"acl|dryrun":      "rights are not told",
	"acl|log":         "who runs into a fence is not named",
	"command|count":   "a reset of the counters is told by other counts only",
	"object|help":     "a reset of the counters is told by other counts only",
	"client|list":     "who is connected is not looked at: a user that is off counts as connected",
	"monitor":         "traffic is not attributed to clients",
	"dbsize":          "no share of the keys is shown as progress",
}

// stops is what fence goes without where it may not read the namespaces.
const stops = "fence does not see which members at stage legacy it would stop"

// use makes a use of words: commands, keys by role, channels. A word behind a question mark is a right that
// nothing depends on, one behind an exclamation mark a right that only a release needs.
func use(name string, words ...string) Use {
	u := Use{Name: name}
	for _, list := range words {
		for word := range strings.FieldsSeq(list) {
			word, optional := strings.CutPrefix(word, "?")
			word, frees := strings.CutPrefix(word, "!")
			r := Right{Kind: kindOf(word), Name: word, Frees: frees}
			if slices.ContainsFunc(u.Rights, func(o Right) bool { return o.Name == word }) {
				continue
			}
			if optional {
				r.Without = without[word]
			}
			u.Rights = append(u.Rights, r)
		}
	}
	return u
}

func kindOf(word string) Kind {
	switch {
	case word == Wake || word == Invalidate || word == RedissonAll || word == Told:
		return Channel
	case word == Lock || word == Namespace || word == Namespaces || word[0] == ':':
		return Key
	}
	return Command
}

const (
	run    = "eval evalsha "
	wakes  = "?exists ?subscribe ?client|id ?client|tracking ?ping ?" + Wake + " ?" + Invalidate + " "
	renews = "get set pttl ?persist ?type ?pexpire " // of a legacy value
	token  = Lock + " set !get !del !eval !evalsha pexpire "
	fair   = Lock + " " + Guard + " set get del eval evalsha pexpire " + Queue + " pttl time zadd zrange zrank zscore ?zrem ?publish ?pubsub|numsub ?info " + wakes
	bridge = Lock + " " + Guard + " " + Queue + " exists !get mget set !del pexpire pttl time ?zadd ?zrange ?zrank ?zscore ?zrem ?publish ?pubsub|numsub ?type ?info " + run + wakes
	member = Namespace + " hget hset hmget ?hdel hgetall time ?acl|whoami ?info "
)

// Packages are the uses of the lock packages.
var Packages = []Use{
	use("legacy", Lock+" setnx getset !del", renews, run),
	use("legacy ReleaseCompare", Lock+" setnx getset !get !del !eval !evalsha", renews),
	use("legacy ServiceStack", Lock+" setnx watch unwatch multi exec !del", renews, run),
	use("legacy FollowServer", Lock+" setnx getset time !del", renews, run),
	use("modern", fair, Yield),
	use("modern FenceTTL", fair, Yield, Fence, "mget"),
	use("modern Unfair", token, "pttl ?type", wakes),
	use("modern Yield", fair, Share),
	use("modern Replicas", fair, Yield, "wait"),
	use("redisson", Lock+" exists !hexists hincrby pexpire pttl !del ?publish ?spublish ?unsubscribe ?"+RedissonAll, run, wakes),
	use("quorum", token, "?type"),
	use("compat", bridge, Yield),
	use("compat FenceTTL", bridge, Fence, Yield),
	use("compat Namespace legacy", member, Lock+" "+Guard+" setnx getset !get set !del ?pttl ?persist ?type ?pexpire", run, wakes),
	use("compat Namespace bridge", bridge, member, Yield),
	use("compat Namespace modern", bridge, member, Yield),
}

const (
	connects = "?ping ?client|setname "
	fence    = "acl|dryrun acl|list ?client|list ?info ?" + Namespace + " ?" + Namespaces + " ?eval ?evalsha ?hgetall ?hmget ?time "
	census   = Lock + " ?" + Guard + " scan ?type pttl getrange hgetall hkeys hlen time ?info "
)

// Commands are the uses of the operator's command.
var Commands = []Use{
	use("lockmigrate scan", connects, census),
	use("lockmigrate doctor", connects, census, "?acl|dryrun ?acl|list ?acl|log ?acl|whoami ?client|id ?client|list ?client|tracking ?command|info ?config|get ?dbsize eval evalsha"),
	use("lockmigrate observe", connects, Lock, "client|id client|list ?dbsize echo get ?info monitor pttl scan"),
	use("lockmigrate verify", connects, census, "?acl|list ?acl|dryrun ?acl|log client|list command|info ?command|count ?object|help echo ?dbsize ?monitor"),
	use("lockmigrate fence", connects, fence),
	use("lockmigrate fence --execute", connects, fence, "acl|setuser"),
	use("lockmigrate sweep", connects, census),
	use("lockmigrate sweep --execute", connects, census, run, "get del hget pexpire"),
	use("lockmigrate serve", connects, census, "client|id client|list ?dbsize echo get monitor"),
	use("lockmigrate stage init", connects, census, Namespace, Namespaces, run, "hget hmget hmset"),
	use("lockmigrate stage", connects, Namespace, run, "hgetall hmget time ?info"),
	use("lockmigrate stage list", connects, Namespace, Namespaces, run, "hgetall hmget scan time"),
	use("lockmigrate stage set", connects, census, Namespace, Namespaces, run, "hget hmget hmset hset"),
	use("lockmigrate stage delete", connects, Namespace, Namespaces, run, "del hget hgetall hmget hmset hset scan time ?info"),
	use("lockmigrate stage advance", connects, census, Namespace, run, "hmget hmset hset ?hdel"),
	use("lockmigrate demo", connects, bridge, member, Fence, Yield, Queue, Share, Record, Namespaces, "setnx getset hlen hmset scan", sidecars,
		"evalsha unsubscribe punsubscribe echo"),
	use("lockmigrate stage rollback", connects, Namespace, run, "hgetall hmget hmset hset time ?hdel ?info ?acl|list ?acl|dryrun"),
}

// Sidecars are the uses of a sidecar: its own user, and that of the service behind it, whose connections run the scripts.
var Sidecars = []Use{
	use("lockmigrate sidecar", member, sidecars, "?ping ?client|setname ?subscribe ?unsubscribe evalsha"),
	use("the service behind it", sidecars, "evalsha ?select"),
}

const sidecars = Lock + " " + Guard + " " + Record + " " + Queue + " " + Yield + " eval hget hset hdel get set del exists pttl pexpire time " +
	"?type ?zadd ?zrange ?zrank ?zscore ?zrem ?publish ?pubsub|numsub ?info ?" + Wake + " ?" + Told

// Doctors are the uses that doctor can try.
func Doctors() []Use { return slices.Concat(Packages, Commands) }

// Find returns one of them by its name.
func Find(name string) (Use, bool) {
	for _, u := range Doctors() {
		if u.Name == name {
			return u, true
		}
	}
	return Use{}, false
}

// Has tells whether a use needs a command.
func (u Use) Has(command string) bool {
	return slices.ContainsFunc(u.Rights, func(r Right) bool { return r.Kind == Command && r.Name == command })
}

// Patterns are the ACL key patterns of a role, for locks whose keys match a pattern: a companion lies in its
// lock's slot, so its name is {key}:queue, or key:queue: where the key has a hash tag.
func Patterns(role, pattern string) []string {
	switch {
	case role == Lock:
		return []string{pattern}
	case role == Namespace || role == Namespaces:
		return []string{role}
	case strings.Contains(pattern, "{"):
		return []string{pattern + role + ":"}
	default:
		return []string{"{" + pattern + "}" + role, pattern + role + ":"}
	}
}

// Rules are the words of ACL SETUSER that grant a use, for locks whose keys match the patterns; skip is a
// right that is left out, nil for none.
func (u Use) Rules(patterns []string, skip *Right) []string {
	out := []string{"resetkeys", "resetchannels", "-@all"}
	for _, r := range u.Rights {
		if skip != nil && r == *skip {
			continue
		}
		switch r.Kind {
		case Command:
			out = append(out, "+"+r.Name)
		case Channel:
			out = append(out, "&"+r.Name)
		default:
			for _, p := range patterns {
				for _, k := range Patterns(r.Name, p) {
					out = append(out, "~"+k)
				}
			}
		}
	}
	return out
}
