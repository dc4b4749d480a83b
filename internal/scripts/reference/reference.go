// Package reference holds uses of the bridge's scripts from other languages, for services that cannot
// take the Go library. The Java one runs as a holder in the test suites, see testdata/holders.
package reference

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

// Java is a class that needs nothing but a way to call EVAL.
//
//go:embed BridgeLock.java
var Java string

// Python is a module that needs nothing but a way to call EVAL.
//
//go:embed bridge_lock.py
var Python string

// Namespace is what a reference must know of a namespace. Times are in milliseconds.
type Namespace struct {
	Name, Record                                              string // Record is the key of its record
	Clients                                                   string // what the record says of the old clients, as it is stored
	Says                                                      string // the same for people
	Unit, Layout                                              string // of the dialect
	TTL, Grace, Settle, Renew, Yield, Breath, Claim, FenceTTL int64
}

// check is the script with which a reference reads what the record says.
const check = "return redis.call('HGET', KEYS[1], 'clients')"

// bridge are the scripts that a reference needs, by the names by which it knows them.
var bridge = []struct {
	name string
	of   *scripts.Script
}{{"acquire", scripts.BridgeAcquire}, {"settle", scripts.BridgeSettle}, {"renew", scripts.BridgeRenew}, {"release", scripts.BridgeRelease}}

// Python is the module with the namespace's values and all scripts, in one file: of_namespace makes the lock.
func (n Namespace) Python() string {
	var b strings.Builder
	b.WriteString(Python)
	fmt.Fprintf(&b, `

# What follows is of namespace %s: %s.

CLIENTS = %s


def of_namespace(evaluate):
    """The lock of namespace %s. It raises ValueError where the record has changed since this file was printed. So does an
    attempt, at most %d s after the change."""
    def record():
        found = evaluate(%s, 1, %s)
        found = found.decode() if isinstance(found, bytes) else found
        if found != CLIENTS:
            raise ValueError("namespace %s: the record says %%s, this file says %%s: print it again with "
                             "lockmigrate scripts --namespace %s" %% (found, CLIENTS))
    record()
    lock = BridgeLock(evaluate, SCRIPTS, unit=%s, layout=%s, ttl_ms=%d, grace_ms=%d, settle_ms=%d, renew_ms=%d,
                      fence_ttl_ms=%d, yield_ms=%d, breath_ms=%d, claim_ms=%d)
    lock.record = record
    return lock


SCRIPTS = {
`, n.Name, n.Says, quoted(n.Clients), n.Name, n.TTL/1000, quoted(check), quoted(n.Record), n.Name, n.Name, quoted(n.Unit), quoted(n.Layout),
		n.TTL, n.Grace, n.Settle, n.Renew, n.FenceTTL, n.Yield, n.Breath, n.Claim)
	for _, s := range bridge {
		fmt.Fprintf(&b, "    %s: (\n", quoted(s.name))
		for line := range strings.Lines(s.of.Source) {
			fmt.Fprintf(&b, "        %s\n", quoted(line))
		}
		b.WriteString("    ),\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// Java is the class with the namespace's values and all scripts, in one file: ofNamespace makes the lock.
func (n Namespace) Java() string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(strings.TrimRight(Java, "\n"), "}"))
	fmt.Fprintf(&b, `
    // What follows is of namespace %s: %s.

    private static final String CLIENTS = %s;

    /**
     * The lock of namespace %s. It throws IllegalStateException where the record has changed since this file was printed. So does
     * an attempt, at most %d s after the change.
     */
    public static BridgeLock ofNamespace(Eval redis) {
        Runnable record = () -> {
            Object found = redis.eval(%s, List.of(%s), List.of());
            String says = found instanceof byte[] ? new String((byte[]) found, StandardCharsets.UTF_8) : String.valueOf(found);
            if (!says.equals(CLIENTS)) {
                throw new IllegalStateException("namespace %s: the record says " + says + ", this file says " + CLIENTS
                        + ": print it again with lockmigrate scripts --namespace %s");
            }
        };
        record.run();
        Options o = new Options();
        o.unit = %s;
        o.layout = %s;
        o.ttlMs = %dL;
        o.graceMs = %dL;
        o.settleMs = %dL;
        o.renewMs = %dL;
        o.fenceTtlMs = %dL;
        o.yieldMs = %dL;
        o.breathMs = %dL;
        o.claimMs = %dL;
        BridgeLock lock = new BridgeLock(redis, o, ACQUIRE, SETTLE, RENEW, RELEASE);
        lock.record = record;
        return lock;
    }
`, n.Name, n.Says, quoted(n.Clients), n.Name, n.TTL/1000, quoted(check), quoted(n.Record), n.Name, n.Name, quoted(n.Unit), quoted(n.Layout),
		n.TTL, n.Grace, n.Settle, n.Renew, n.FenceTTL, n.Yield, n.Breath, n.Claim)
	for _, s := range bridge {
		fmt.Fprintf(&b, "\n    private static final String %s = \"\"", strings.ToUpper(s.name))
		for line := range strings.Lines(s.of.Source) {
			fmt.Fprintf(&b, "\n            + %s", quoted(line))
		}
		b.WriteString(";\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// quoted is a text as a string of JSON, which Python and Java read alike.
func quoted(text string) string {
	var b strings.Builder
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	_ = out.Encode(text) // a string is always encoded
	return strings.TrimSuffix(b.String(), "\n")
}
