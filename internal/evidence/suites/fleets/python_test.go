package fleets

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/scripts/reference"
)

const pythonStory = `
import sys
from bridge_lock import BridgeLock
import redis
port = int(sys.argv[1])
client = redis.StrictRedis(port=port)
lock = BridgeLock(client.eval, scripts=".", settle_ms=20, grace_ms=50, unit="ms")

assert lock.try_acquire("held") is None, "taken beside a Go holder"
client.set("old", 1300000000000)
held = lock.try_acquire("old")
assert held and client.get("old") == held.value.encode() and held.fence > 0, "no takeover"
assert lock.try_acquire("old") is None, "taken twice"
assert lock.renew(held)
client.delete("old")
assert lock.renew(held) and client.get("old") == held.value.encode(), "not repaired"
client.set("old", 9999999999999)
assert not lock.renew(held), "not told of a displacement"
assert not lock.release(held) and client.get("old") == b"9999999999999"
free = lock.try_acquire("{7}free")
assert free and lock.release(free) and client.get("{7}free") is None

import time
from bridge_lock import NotAcquired
try:
    BridgeLock(client.eval, scripts=".", unit="")
    assert False, "a unit that nobody said"
except ValueError:
    pass
short = BridgeLock(client.eval, scripts=".", settle_ms=20, grace_ms=50, unit="ms", ttl_ms=300)
with short.hold("renewed", wait_ms=1000) as holding:
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert holding.alive() and client.get("renewed") == holding.held.value.encode(), "not renewed over several TTLs"
        try:
            with short.hold("renewed", wait_ms=50):
                assert False, "taken twice"
        except NotAcquired:
            pass
assert client.get("renewed") is None, "not released"
with short.hold("renewed", wait_ms=1000) as holding:
    client.set("renewed", 9999999999999)
    end = time.monotonic() + 5
    while holding.alive() and time.monotonic() < end:
        time.sleep(0.01)
    assert not holding.alive(), "not told of a displacement"
client.delete("renewed")
first = short.acquire("waited", 1000)
import threading
threading.Timer(0.2, short.release, [first]).start()
assert short.acquire("waited", 10000), "did not wait"
print("ok")
`

// TestPythonReference runs what lockmigrate scripts prints, on redis-py 2.9.1.
func TestPythonReference(t *testing.T) {
	server := redistest.Real(t)
	l := locker(t, server, compat.Options{})
	lock := hold(t, l, "held")
	dir := t.TempDir()
	files := map[string]string{"bridge_lock.py": reference.Python, "story.py": pythonStory}
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		files[s.Name] = s.Source
	}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, port, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	cmd := exec.Command(filepath.Join(holders.Root(t), "python/.venv/bin/python"), "story.py", port)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	assert.NoError(t, err, "%s", out)
	assert.Equal(t, "ok\n", string(out))
	assert.NoError(t, lock.Release(t.Context()))
}
