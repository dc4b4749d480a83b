package clients

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// client is a released lock, and what is true of it: found in its source, and shown here by its process.
type client struct {
	name string // of the package, as its registry calls it
	kind holders.Kind
	key  string // as its callers name keys
	opts []holders.Option

	clock func(testing.TB, time.Duration) holders.Option // moves its clock; nil: it reads none, or none that can be moved
	lease time.Duration                                  // as it was started; 0: it knows none

	takes    string // its commands on a free key
	takeover string // on an expired value of its own; empty: it never takes one over
	releases string
	value    string // what it writes, in words
	form     string // and as a regular expression
	ttl      bool
	text     reading // what it makes of a random text on the key
	moved    bool    // it goes by its own clock: one that is ahead takes a live lock

	scan    string // format of its value
	dialect string // that scan and observe name
	observe string // kind that observe names

	// blind: it writes over a holder that it should have seen. Nothing can share a key with it.
	blind bool
	// never: it never releases, so every turn takes a lease.
	never bool
	// compares: its release asks whose the lock is. All others delete whatever is there.
	compares bool
}

// reading is what an attempt on a held key came to.
type reading string

const (
	held     reading = "held"
	throws   reading = "throws"
	steals   reading = "stolen"
	destroys reading = "overwritten, not taken"
)

func hook(_ testing.TB, d time.Duration) holders.Option { return holders.Arg("clock", d) }

var (
	short  = holders.Arg("lease", lease)
	quick  = holders.Arg("poll", 20*time.Millisecond)
	waits  = holders.Arg("wait", 10*time.Second)
	simple = []holders.Option{short, waits, quick}
)

// The keys are those that each package makes of a name, where it makes any.
var clients = []client{
	{
		name: "Maven com.github.jedis-lock:jedis-lock 1.0.0", kind: holders.JedisLock, key: "lock.order.17", opts: []holders.Option{short, waits}, clock: holders.Clock, lease: lease,
		value: "expiry in ms, plus 1", form: `^\d{13}$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "DEL", text: throws, moved: true,
		scan: "expiry-ms", dialect: "jedis-ms", observe: "legacy",
	},
	{
		name: "PyPI redis 2.7.6", kind: holders.RedisPy27, key: "lock.order.1", opts: simple, clock: hook, lease: lease,
		value: "expiry in whole seconds, printed as a float", form: `^\d{10}\.0$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "GET, DEL", text: throws, moved: true,
		scan: "expiry-float-s", dialect: "redispy-float", observe: "legacy",
	},
	{
		name: "PyPI redis 2.9.1", kind: holders.RedisPy, key: "lock.order.18", opts: simple, clock: hook, lease: lease,
		value: "expiry in s as a float", form: `^\d{10}\.\d+$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "GET, DEL", text: throws, moved: true,
		scan: "expiry-float-s", dialect: "redispy-float", observe: "legacy",
	},
	{
		name: "PyPI redis 2.10.6", kind: holders.RedisPyLua, key: "lock.order.2", opts: simple, lease: lease,
		value: "32 hexadecimal digits", form: `^[0-9a-f]{32}$`,
		takes: "EVALSHA (SETNX, PEXPIRE)", releases: "EVALSHA (GET, DEL)", ttl: true, text: held,
		scan: "token", dialect: "setnx-expire", observe: "modern", compares: true,
	},
	{
		name: "PyPI redis 2.10.6, Lock without Lua", kind: holders.RedisPySetNX, key: "lock.order.3", opts: simple, lease: lease,
		value: "32 hexadecimal digits", form: `^[0-9a-f]{32}$`,
		takes: "SETNX, PEXPIRE", releases: "WATCH, GET, DEL, UNWATCH", ttl: true, text: held,
		scan: "token", dialect: "setnx-expire", observe: "modern", compares: true,
	},
	{
		name: "PyPI redis-lock 0.2.0", kind: holders.RedisLockPy, key: "lock.order.4", opts: simple, clock: hook, lease: lease,
		value: "expiry in s, plus 1", form: `^\d{10}$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "DEL", text: throws, moved: true,
		scan: "expiry-s", dialect: "redis-doc", observe: "legacy",
	},
	{
		name: "PyPI retools 0.3", kind: holders.Retools, key: "lock.order.5", opts: []holders.Option{short, waits}, clock: hook, lease: lease,
		value: "expiry in s as a float, plus 1", form: `^\d{10}\.\d+$`,
		takes: "SETNX, EXPIRE", releases: "DEL", ttl: true, text: throws, moved: true,
		scan: "expiry-float-s", dialect: "redis-objects", observe: "legacy",
	},
	{
		name: "PyPI redis-netlock 1.6", kind: holders.Netlock, key: "lock_order6", opts: []holders.Option{short}, lease: lease,
		value: "the number 1", form: `^1$`,
		takes: "GET, SETNX, EXPIRE", releases: "DEL", ttl: true, text: held,
		scan: "token", dialect: "setnx-expire", observe: "modern",
	},
	{
		name: "PyPI celery_once 1.2.0", kind: holders.CeleryOnce, key: "qo_tasks.ship_order-7", opts: simple, clock: hook, lease: lease,
		value: "expiry in s", form: `^\d{10}$`,
		takes: "GET, SETEX", releases: "DEL", ttl: true, text: throws, moved: true,
		scan: "blind-set", dialect: "blind-set", observe: "legacy", blind: true,
	},
	{
		name: "npm redis-lock 0.0.8", kind: holders.RedisLock0, key: "lock.order.8", opts: simple, clock: hook, lease: lease,
		value: "expiry in ms, plus 1", form: `^\d{13}$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "DEL", text: destroys, moved: true,
		scan: "expiry-ms", dialect: "jedis-ms", observe: "legacy",
	},
	{
		name: "npm redis-lock 1.0.0", kind: holders.RedisLock1, key: "lock.order.9", opts: simple, clock: hook, lease: lease,
		value: "expiry in ms, plus 1", form: `^\d{13}$`,
		takes: "SET PX NX", releases: "DEL", ttl: true, text: held,
		scan: "token", dialect: "set-nx-px", observe: "modern",
	},
	{
		name: "npm node-resque 9.7.1, QueueLock", kind: holders.QueueLock, key: "resque:lock:ship:orders:[10]", opts: simple, clock: hook, lease: lease,
		value: "expiry in s, plus 1", form: `^\d{10}$`,
		takes: "SETNX, EXPIRE", releases: "DEL", ttl: true, text: steals, moved: true,
		scan: "blind-set", dialect: "blind-set", observe: "legacy", blind: true,
	},
	{
		name: "npm node-resque 9.7.1, JobLock", kind: holders.JobLock, key: "resque:workerslock:ship:orders:[11]", opts: simple, clock: hook, lease: lease,
		value: "expiry in s, plus 1", form: `^\d{10}$`,
		takes: "SET EX NX", releases: "DEL", ttl: true, text: held,
		scan: "token", dialect: "set-nx-px", observe: "modern",
	},
	{
		name: "Maven io.jboot:jboot 3.16.0", kind: holders.Jboot, key: "lock.order.12", opts: []holders.Option{short, waits}, clock: holders.Clock, lease: lease,
		value: "expiry in ms, plus 1, as a Long that FST serialized", form: `(?s)^\xf6\x82.{8}$`,
		takes: "SETNX", takeover: "SETNX, GET, GETSET", releases: "DEL", text: held, moved: true,
		scan: "fst-expiry-ms", dialect: "jboot", observe: "legacy",
	},
	{
		name: "Go machinery 1.10.8", kind: holders.Machinery, key: "lock.order.13", opts: simple, lease: lease,
		value: "expiry in ns", form: `^\d{19}$`,
		takes: "SET PX NX", ttl: true, text: throws, never: true,
		scan: "expiry-ns", dialect: "unix-ns", observe: "legacy",
	},
	{
		name: "Go go-redis 9.23.0, SetNX without expiration", kind: holders.GoRedisSetNX, key: "lock.order.14", opts: simple, clock: hook, lease: lease,
		value: "expiry in ms, plus 1", form: `^\d{13}$`,
		takes: "SET NX", takeover: "SET NX, GET, GETSET", releases: "DEL", text: throws, moved: true,
		scan: "expiry-ms", dialect: "jedis-ms", observe: "legacy",
	},
	{
		name: "Laravel 8 Cache::lock without seconds", kind: holders.Laravel, key: "laravel_cache:order15", opts: []holders.Option{waits, quick},
		value: "16 letters and digits", form: `^[0-9A-Za-z]{16}$`,
		takes: "SETNX", releases: "EVAL (GET, DEL)", text: held,
		scan: "token-no-ttl", dialect: "setnx-uuid", observe: "legacy", compares: true,
	},
	{
		name: "Laravel 8 Cache::lock with seconds", kind: holders.Laravel, key: "laravel_cache:order16", opts: simple, lease: lease,
		value: "16 letters and digits", form: `^[0-9A-Za-z]{16}$`,
		takes: "SET EX NX", releases: "EVAL (GET, DEL)", ttl: true, text: held,
		scan: "token", dialect: "set-nx-px", observe: "modern", compares: true,
	},
}

const head = `# Released locks, and what to do about each

For operators whose old clients lock with a released package: what does it write, can Go lock beside it, and what comes first?

Made by ` + "`go test ./internal/evidence/suites/clients -update`" + `. The same suite runs each package unmodified against a real
redis-server and checks every cell (TestClients), and turns beside Go members with the clients' clocks ahead by two leases (TestFleets, TestBlindSetters). [testdata/holders](../testdata/holders/README.md) says how each package is run.

## What do I do?

| released lock | scan says | observe says | verify says | Go beside it | what to do |
|---|---|---|---|---|---|
`

const middle = `
*Go beside it*: "no overlap" holds while a client finishes within its lease, and the old clients' clocks agree with each other.

*verify says "seen"* of clients that take a lock by SETNX, or write a time on a lock key. Such a client must go before a certificate. A fence stops those that send SETNX or GETSET; it does not stop those
that send SET or SETEX.

## What does each one send and write?

| released lock | takes a free key by | takes over an expired value by | releases by | value | TTL | reads a random text as | clock ahead by more than a lease |
|---|---|---|---|---|---|---|---|
`

const foot = `
- **takes over**: "-" means that the key goes by its TTL before anybody could, or never.
- **reads a random text as**: what its attempt makes of a UUID on the key, the token of many modern locks. *held*: it waits.
  *throws*: an exception leaves its acquire. *stolen*: it takes the lock. *overwritten, not taken*: it destroys the value and waits.
  Go's own tokens are numbers that all of them take for held, at stage bridge and at stage modern.
- **clock ahead**: whether such a client takes a live lock from another of its kind. A Go member's lock is never taken.
- **DEL** in *releases by* does not ask whose lock it is: a holder that overran its lease deletes its successor's.
`

// scanSays is the format and, where it tells one, the dialect.
func (c client) scanSays() string {
	if c.scan == "token" || c.scan == "token-no-ttl" || c.scan == c.dialect {
		return "`" + c.scan + "`"
	}
	return fmt.Sprintf("`%s` (%s)", c.scan, c.dialect)
}

// advice is what an operator does, by what the client is.
func (c client) advice() string {
	switch {
	case c.blind:
		return "Refused: two that read the key at the same time both enter. Move these clients to other keys, or replace them, before Go joins."
	case c.never:
		return fmt.Sprintf("Namespace with `--dialect %s`. It never releases: Go waits for its TTL. Replace it before stage modern.", c.dialect)
	case c.scan == "token-no-ttl":
		return "Give it a TTL (`Cache::lock(name, seconds)`) before Go joins. After a crash nothing frees its key: Go reports a foreign value, `lockmigrate doctor` warns."
	case c.observe == "legacy" && c.ttl:
		return fmt.Sprintf("Namespace with `--dialect %s`; before stage modern, put a sidecar beside it or replace it. Its TTL frees the key of a crashed holder.", c.dialect)
	case c.observe == "legacy":
		return fmt.Sprintf("Namespace with `--dialect %s`; before stage modern, put a sidecar beside it or replace it.", c.dialect)
	case c.modern():
		return "May stay at every stage."
	case c.compares:
		return "Lives beside bridge and modern. Replace it before a certificate or a fence: it sends SETNX."
	case strings.Contains(c.takes, "SETNX"):
		return "Lives beside bridge and modern while it finishes within its TTL. Replace it before a certificate or a fence: it sends SETNX."
	default:
		return "Lives beside bridge and modern while it finishes within its TTL. Replace it before a certificate: it writes a time."
	}
}

// cell is a list of commands, or a dash.
func cell(commands string) string {
	if commands == "" {
		return "-"
	}
	return "`" + commands + "`"
}

func document() string {
	yes := map[bool]string{true: "yes", false: "no"}
	var b strings.Builder
	b.WriteString(head)
	for _, c := range clients {
		verdict := map[bool]string{true: "not a finding", false: "seen"}[c.modern()]
		fmt.Fprintf(&b, "| %s | %s | %s, `%s` | %s | %s | %s |\n", c.name, c.scanSays(), c.observe, c.dialect, verdict, map[bool]string{true: "**overlaps**", false: "no overlap"}[c.blind], c.advice())
	}
	b.WriteString(middle)
	for _, c := range clients {
		clock := map[bool]string{true: "takes a live lock", false: "changes nothing"}[c.moved]
		if c.clock == nil {
			clock = "not tried"
			if c.ttl && c.scan == "token" || c.scan == "token-no-ttl" {
				clock = "reads no clock"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", c.name, cell(c.takes), cell(c.takeover), cell(c.releases), c.value, yes[c.ttl], c.text, clock)
	}
	b.WriteString(foot)
	return b.String()
}

// TestDocument writes docs/clients.md, or sees to it that it says what this suite checks.
func TestDocument(t *testing.T) {
	redistest.Document(t, filepath.Join("..", "..", "..", "..", "docs", "clients.md"), document(), *update)
}
