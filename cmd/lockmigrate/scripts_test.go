package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/scripts/reference"
)

const pythonOfNamespace = `
import sys, time
import redis, bridge_lock
client = redis.StrictRedis(port=int(sys.argv[1]))
if len(sys.argv) > 2:
    try:
        bridge_lock.of_namespace(client.eval)
        print("accepted")
    except ValueError as e:
        print(e)
    sys.exit()
lock = bridge_lock.of_namespace(client.eval)
with lock.hold("lock.order.1", wait_ms=5000) as holding:
    assert holding.alive() and client.get("lock.order.1") == holding.held.value.encode()
    assert lock.try_acquire("lock.order.1") is None, "taken twice"
assert client.get("lock.order.1") is None, "not released"
behind = repr(time.time() - 1.5)        # over for 1.5 s: less than lag and delay of the record
client.set("lock.order.2", behind)
assert lock.try_acquire("lock.order.2") is None, "taken over within the grace of the record"
client.set("lock.order.2", repr(time.time() - 4))
held = lock.try_acquire("lock.order.2")
assert held and lock.release(held)
first = lock.acquire("lock.order.3", 1000)
import threading
threading.Timer(0.2, lock.release, [first]).start()
assert lock.acquire("lock.order.3", 10000), "did not wait"
says = client.hget("lockmigrate:{orders}:stage", "clients")
client.hset("lockmigrate:{orders}:stage", "clients", "others")
assert lock.release(lock.try_acquire("lock.order.4")), "looked at the record again at once"
lock._next_look = 0                     # as after some seconds
try:
    lock.try_acquire("lock.order.4")
    print("does not follow the record")
except ValueError:
    pass
assert client.get("lock.order.4") is None
client.hset("lockmigrate:{orders}:stage", "clients", says)
print("ok", lock.renew_every, lock.settle, lock.values["rules"], lock.values["breath"])
`

// The namespace's class is made by an Eval that answers for the server, with the record as it is given.
const javaOfNamespace = `
import lockmigrate.bridge.BridgeLock;
import java.util.ArrayList;
import java.util.List;
public class Story {
    public static void main(String[] args) throws Exception {
        List<String> asked = new ArrayList<>();
        BridgeLock.Eval eval = (script, keys, values) -> {
            asked.add(script);
            return script.contains("HGET") ? args[0].getBytes() : (Object) List.of(1L, 7L, 0L);
        };
        try {
            BridgeLock lock = BridgeLock.ofNamespace(eval);
            BridgeLock.Held held = lock.tryAcquire("lock.order.1");
            System.out.println("fence " + held.fence + " " + asked.get(1).startsWith("-- bridge_acquire.lua"));
            var next = BridgeLock.class.getDeclaredField("nextLook");
            next.setAccessible(true);
            next.setLong(lock, System.nanoTime()); // as after some seconds
            args[0] = "others";
            lock.tryAcquire("lock.order.1");
            System.out.println("does not follow the record");
        } catch (IllegalStateException e) {
            System.out.println(e.getMessage());
        }
    }
}
`

// TestScriptsOfNamespace prints the references of a namespace, and runs them: they work with the record's values and nothing
// beside them, and refuse to work when the record has changed.
func TestScriptsOfNamespace(t *testing.T) {
	t.Parallel()
	redistest.Need(t, redistest.Redis, redistest.Python, redistest.Java)
	s := redistest.Real(t)
	o := operator{t, s.URL()}
	o.runs(exitDone, "stage", "init", "--namespace", "orders", "--match", "lock.order.*", "--dialect", "redispy-float", "--shortest-lease", "6s",
		"--clock-lag", "2s", "--command-delay", "300ms", "--yield", "200ms", "--execute")
	dir := t.TempDir()
	o.runs(exitDone, "scripts", "--namespace", "orders", "--out", dir)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "one file for each language is all that a service needs")
	_, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("story.py", pythonOfNamespace)
	write("Story.java", javaOfNamespace)
	python := filepath.Join(holders.Root(t), "python/.venv/bin/python")
	assert.Equal(t, "ok 2.0 300 2300 float plain 200 5", run(python, "story.py", port), "a third of the shortest lease, the delay, lag and delay, the yield")

	run("javac", "-d", ".", "BridgeLock.java", "Story.java")
	clients := `{"dialect":"redispy-float","shortest_ms":6000,"lag_ms":2000,"delay_ms":300,"yield_ms":200}`
	assert.Regexp(t, "(?s)^fence 7 true\n.*the record says others", run("java", "-cp", ".", "Story", clients))
	assert.Contains(t, run("java", "-cp", ".", "Story", strings.Replace(clients, "2000", "5000", 1)), "lockmigrate scripts --namespace orders")

	_, stderr := o.runs(exitDone, "stage", "set", "--namespace", "orders", "--clock-lag", "4s", "--execute")
	assert.Contains(t, stderr, "Print the reference again")
	assert.Contains(t, run(python, "story.py", port, "changed"), `"lag_ms":4000`)
	o.runs(exitDone, "scripts", "--namespace", "orders", "--lang", "python", "--out", dir)
	assert.Equal(t, "accepted", run(python, "story.py", port, "changed"))

	o.runs(exitUsage, "scripts", "--namespace", "orders", "--lang", "lua")
	o.runs(exitFailed, "scripts", "--namespace", "nobody")
	o.runs(exitDone, "stage", "init", "--namespace", "uuids", "--match", "uuid.*", "--dialect", "jedis-uuid", "--shortest-lease", "30s", "--execute")
	_, stderr = o.runs(exitUnsafe, "scripts", "--namespace", "uuids")
	assert.Contains(t, stderr, "put a sidecar beside the service")
}

// TestReferencesKnowEveryName: both references have each key and argument of the bridge's scripts that cannot be left out.
func TestReferencesKnowEveryName(t *testing.T) {
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		for _, a := range append(s.Keys[:len(s.Keys):len(s.Keys)], s.Args...) {
			for language, text := range map[string]string{"Java": reference.Java, "Python": reference.Python} {
				if !a.Optional && !strings.Contains(text, `"`+a.Name+`"`) {
					t.Errorf("%s needs %s, and the reference in %s does not have it", s.Name, a.Name, language)
				}
			}
		}
	}
}
