"""bridge_lock.py: the bridge lock for Python services, over the scripts that `lockmigrate scripts` prints.

A lock that SETNX/GETSET clients, bridge clients and token clients on the same key all respect. Every
transition is one script on the server, whose clock is the only one.

    lock = BridgeLock(client.eval, scripts="scripts")     # the folder that `lockmigrate scripts --out` wrote
    held = lock.try_acquire("lock.orders")
    if held:
        try:
            ...                                # lock.renew(held) three times in each TTL; False: stop working
        finally:
            lock.release(held)
"""
import collections
import os
import secrets
import time

Held = collections.namedtuple("Held", "key value fence")


class BridgeLock:
    MOST_SETTLES = 8

    def __init__(self, evaluate, scripts, ttl_ms=10000, grace_ms=1250, settle_ms=250, unit="float", layout="plain",
                 fence_ttl_ms=7 * 24 * 3600 * 1000, yield_after_ms=600, yield_for_ms=120, yield_at_most_ms=4800):
        """evaluate(script, numkeys, *keys_and_args) is EVAL. unit is the legacy dialect's: ms, s, float or ns.

        grace_ms: at least the lag of legacy clocks plus the delay of their commands. settle_ms: at least that
        delay, and with it below the shortest legacy lease. yield_at_most_ms: what the Go library lets
        yield_after_ms grow to where nobody uses the gaps; at least that.
        """
        self.evaluate = evaluate
        self.ttl, self.grace, self.settle, self.unit, self.layout = ttl_ms, grace_ms, settle_ms, unit, layout
        self.fence_ttl, self.yield_after = fence_ttl_ms, yield_after_ms
        self.gap = yield_for_ms if yield_after_ms else 0
        self.longer = yield_at_most_ms - yield_after_ms
        self.scripts = {}
        for name in ("acquire", "settle", "renew", "release"):
            with open(os.path.join(scripts, "bridge_%s.lua" % name)) as f:
                self.scripts[name] = f.read()

    def try_acquire(self, key):
        """One attempt; None when another holds the key."""
        held, ours = Held(key, new_value(), 0), False
        try:
            reply = self._run("acquire", key, (":guard", ":fence", ":streak", ":line"), held.value, self.ttl, self.grace,
                              self.unit, self.layout, self.fence_ttl, 0, self.yield_after, self.gap, self.longer, 0)
            if reply[0] <= 0:
                ours = True  # nothing to give back
                return None
            held = held._replace(fence=reply[1])
            ours = reply[0] == 1 or self._settled(held)
            return held if ours else None
        finally:
            if not ours:  # also when a reply was lost: the value is ours alone, so this harms nobody
                self.release(held)

    def _settled(self, held):
        """After a takeover: wait for longer than a legacy client needs from its GET to its GETSET, and look."""
        for _ in range(self.MOST_SETTLES):
            time.sleep(self.settle / 1000.0)
            code = self._run("settle", held.key, (":guard",), held.value, self.ttl, self.grace, self.unit, self.layout, 0, 0)[0]
            if code <= 1:
                return code == 1
        return False

    def renew(self, held):
        """False: the lock is lost. The deadline counts from before the call."""
        return self._run("renew", held.key, (":guard", ":fence", ":streak"), held.value, self.ttl, self.fence_ttl, 0, self.gap)[0] > 0

    def release(self, held):
        """False: the lock had been lost, or another value stands on the key. Call it also for a lost lock."""
        return self._run("release", held.key, (":guard", ":streak", ":line"), held.value, self.gap, self.ttl, 0)[0] > 0

    def _run(self, name, key, suffixes, *args):
        keys = [key] + [beside(key, suffix) for suffix in suffixes]
        return self.evaluate(self.scripts[name], len(keys), *(keys + list(args)))


def new_value():
    """A number that every legacy reader takes for an expiry that never comes."""
    return str(5 * 10**18 + secrets.randbelow(42 * 10**17))


def beside(key, suffix):
    """The name of a key in the lock's cluster slot: see Beside in the Go library, whose names these are."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    if end > start + 1:
        return key + suffix + ":"
    if not key or "}" in key:
        raise ValueError("no companion key for %r: a closing brace without a hash tag" % key)
    return "{%s}%s" % (key, suffix)
