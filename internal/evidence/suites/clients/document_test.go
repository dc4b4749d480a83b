package clients

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

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
		return fmt.Sprintf("Namespace with `--dialect %s`; replace it before stage modern. Its TTL frees the key of a crashed holder.", c.dialect)
	case c.observe == "legacy":
		return fmt.Sprintf("Namespace with `--dialect %s`; replace it before stage modern.", c.dialect)
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

func (c client) besideGo() string {
	if c.blind {
		return "**overlaps**"
	}
	return "no overlap"
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
		fmt.Fprintf(&b, "| %s | %s | %s, `%s` | %s | %s | %s |\n", c.name, c.scanSays(), c.observe, c.dialect, verdict, c.besideGo(), c.advice())
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
