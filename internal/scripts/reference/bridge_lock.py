"""bridge_lock.py: the bridge lock for Python services, over the scripts that `lockmigrate scripts` prints.

A lock that SETNX/GETSET clients, bridge clients and token clients on the same key all respect. Every
transition is one script on the server, whose clock is the only one.

    # the folder that `lockmigrate scripts --lang python --out scripts` wrote; the unit of the fleet's dialect
    lock = BridgeLock(client.eval, scripts="scripts", unit="ms")
    with lock.hold("lock.orders", wait_ms=30000) as holding:      # NotAcquired after the wait
        for step in work:
            if not holding.alive():                              # the lock is lost: stop
                break
            step()

A thread renews the lock while it is held, so `client` must be safe for threads, as redis-py's is.
"""
import collections
import os
import random
import re
import secrets
import threading
import time

Held = collections.namedtuple("Held", "key value fence since")


# The keys of the scripts, by the names in their headers: what stands behind the lock's key.
SUFFIXES = {"key": "", "guard": ":guard", "fence": ":fence", "yield": ":yield", "queue": ":queue"}


class NotAcquired(Exception):
    """The wait is over and another holds the lock."""


class BridgeLock:
    MOST_SETTLES = 8

    def __init__(self, evaluate, scripts, unit, layout="plain", ttl_ms=10000, grace_ms=1250, settle_ms=250,
                 renew_ms=None, poll_ms=100, fence_ttl_ms=60000, yield_ms=120, breath_ms=0, claim_ms=None):
        """evaluate(script, numkeys, *keys_and_args) is EVAL. It must not wait for a reply for longer than ttl_ms.

        scripts is the folder with the scripts, or their texts by name: acquire, settle, renew, release.
        unit is that of the fleet's dialect, which nothing here can guess: ms (jedis), s, float (redis-py) or ns.
        renew_ms: how often hold() renews, at least each third of ttl_ms; less than the shortest legacy lease.
        poll_ms: the pause between two attempts, less up to half at random.
        grace_ms: at least the lag of legacy clocks plus the delay of their commands. settle_ms: at least that
        delay, and with it below the shortest legacy lease. yield_ms: for how long a contended key is
        left free at a time, more than the pause between two looks of an old client; 0 never.
        breath_ms: for how long a key stays free of bridge clients after a release; 5 where old clients take a key that
        has gone for an expired one (redis-py). claim_ms: for how long a lock that is handed over waits for us.
        """
        if unit not in ("ms", "s", "float", "ns"):
            raise ValueError("unit %r: ms, s, float or ns" % (unit,))
        self.evaluate = evaluate
        self.renew_every, self.poll = min(renew_ms or ttl_ms, ttl_ms / 3.0) / 1000.0, poll_ms / 1000.0
        self.ttl, self.settle = ttl_ms, settle_ms
        # record() raises where the namespace is not what it was. An attempt calls it first, at most once in ttl_ms.
        self.record, self._next_look = lambda: None, time.monotonic() + ttl_ms / 1000.0
        self.values = {  # the scripts' arguments, by the names in their headers
            "ttl": ttl_ms, "fence_ttl": fence_ttl_ms, "not_after": 0,
            "rules": "%d %s %s %d" % (grace_ms, unit, layout, yield_ms), "gap": yield_ms, "behind": 0, "hand": 0,
            "breath": breath_ms, "entry": "", "stood": "", "queue_ttl": 90000 + ttl_ms,
        }
        # for how long a lock may be ours that was handed to us, before we have found it on the key
        self.claim = min(ttl_ms, claim_ms or max(1000, 5 * poll_ms))
        self.scripts = {}
        for name in ("acquire", "settle", "renew", "release"):
            if isinstance(scripts, dict):
                text = scripts[name]
            else:
                with open(os.path.join(scripts, "bridge_%s.lua" % name)) as f:
                    text = f.read()
            known = {"KEYS": set(SUFFIXES), "ARGV": set(self.values) | {"value", "held"}}
            names = {"KEYS": [], "ARGV": []}
            for kind, optional, word in re.findall(r"^-- (KEYS|ARGV) (\[?)(\w+)", text, re.M):
                if None in names[kind]:  # behind one that is left out
                    continue
                if word in known[kind]:
                    names[kind].append(word)
                elif optional:  # it may be left out, and so may all that follow it
                    names[kind].append(None)
                else:
                    raise ValueError("bridge_%s.lua needs %s: take script and module from one version" % (name, word))
            self.scripts[name] = text, [n for n in names["KEYS"] if n], [n for n in names["ARGV"] if n]

    def try_acquire(self, key):
        """One attempt, past all waiters; None when another holds the key."""
        return self._attempts(key, None)

    def acquire(self, key, wait_ms):
        """Waits in the key's queue until it has the lock; None when wait_ms are over.

        It listens to no message: the lock is handed to it, and it finds that at its next look.
        """
        return self._attempts(key, time.monotonic() + wait_ms / 1000.0)

    def _attempts(self, key, end):
        held, ours = Held(key, new_value(), 0, 0), False
        more = {"entry": "%d 0 1 - %s" % (self.claim, held.value)} if end else {"queue": None}
        try:
            while True:
                if time.monotonic() >= self._next_look:
                    self.record()
                    self._next_look = time.monotonic() + self.ttl / 1000.0
                held = held._replace(since=time.monotonic())
                reply = self._run("acquire", held, **more)
                if reply[0] > 0:
                    held = held._replace(fence=reply[1])
                    ours = reply[0] == 1 or self._settled(held)
                if ours:
                    return held
                left = (end or 0) - time.monotonic()
                if left <= 0:
                    return None
                poll = self.poll / 10 if reply[0] <= 0 and reply[1] < 4 else self.poll  # the others wait until we look
                time.sleep(min(left, poll * random.uniform(0.5, 1)))
        finally:
            if not ours:  # also when a reply was lost: the value is ours alone, so this harms nobody
                self._run("release", held, **more)

    def hold(self, key, wait_ms):
        """A Holding, to be used with `with`: the lock is renewed until the end of the block, and released."""
        return Holding(self, key, wait_ms)

    def _settled(self, held):
        """After a takeover: wait for longer than a legacy client needs from its GET to its GETSET, and look."""
        for _ in range(self.MOST_SETTLES):
            time.sleep(self.settle / 1000.0)
            code = self._run("settle", held)[0]
            if code <= 1:
                return code == 1
        return False

    def renew(self, held):
        """False: the lock is lost. The deadline counts from before the call."""
        return self._run("renew", held)[0] > 0

    def release(self, held):
        """False: the lock had been lost, or another value stands on the key. Call it also for a lost lock."""
        code = self._run("release", held, hand=1)[0]
        if code < 0:
            self._run("release", held)  # another value stands on the key: now the guard goes
        return code > 0

    def _run(self, name, held, **more):
        text, keys, args = self.scripts[name]
        suffixes = dict(SUFFIXES, queue="") if "queue" in more else SUFFIXES  # the lock's key: we wait for nobody
        call = [beside(held.key, suffixes[k]) if suffixes[k] else held.key for k in keys]
        values = dict(self.values, value=held.value, held=int((time.monotonic() - held.since) * 1000), **more)
        call += [values[a] for a in args]
        reply = self.evaluate(text, len(keys), *call)
        return reply if isinstance(reply, list) else [reply]


class Holding:
    """A lock that is renewed by a thread while the block runs."""

    def __init__(self, lock, key, wait_ms):
        self.lock, self.key, self.wait_ms = lock, key, wait_ms
        self.held, self._deadline, self._done = None, 0, threading.Event()

    def __enter__(self):
        self.held = self.lock.acquire(self.key, self.wait_ms)
        if not self.held:
            raise NotAcquired(self.key)
        began = time.monotonic()
        try:
            ours = self.lock.renew(self.held)  # from here on the deadline is known: a takeover may have taken long
        except Exception:
            ours = False
        if not ours:
            self.lock.release(self.held)
            raise NotAcquired(self.key)
        self._deadline = began + self.lock.ttl / 1000.0
        threading.Thread(target=self._renew, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self.lock.release(self.held)

    def alive(self):
        """False: the lock is lost, or no renewal has been confirmed for a TTL. Stop working."""
        return time.monotonic() < self._deadline

    @property
    def fence(self):
        """Larger than that of every earlier holder: let stores refuse writes with a smaller one."""
        return self.held.fence

    def _renew(self):
        while not self._done.wait(self.lock.renew_every):
            began = time.monotonic()
            try:
                ours = self.lock.renew(self.held)
            except Exception:  # no reply: the old deadline stands, and the next round tries again
                continue
            if not ours:
                self._deadline = 0
                return
            self._deadline = began + self.lock.ttl / 1000.0


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
