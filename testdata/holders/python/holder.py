"""holder.py: the Python holders, real lock code that the Go test suites run against.

Usage: holder.py KIND redis://[user:pass@]host:port/db [name=value ...]
../README.md describes the kinds and the line protocol. Runs on CPython 3.8 and later. Which kinds there are depends on
the environment's redis-py.
"""
import base64
import binascii
import json
import math
import os
import queue
import sys
import threading
import time
from urllib.parse import unquote, urlsplit

import redis

import locks
import released
from locks import FOREVER, Unsupported, class_name, connect

SLICE_MS = 1000  # a blocking acquire inside `turns` is cut into slices of this length, so that `stop` is heard
GRACE_MS = 10_000  # after the end of the input, a command that still waits gets this long
LEAVE_TRIES = 50  # a referee's field that stays behind would look like an overlap for ever

# By redis-py's version: each environment has the packages of one time.
KINDS = {
    "2.7.6": {
        "redis-py": locks.RedisPyHolder,
        "redis-lock": released.RedisLockHolder,
        "retools": released.RetoolsHolder,
    },
    "2.9.1": {
        "redis-py": locks.RedisPyHolder,
        "setnx-uuid": locks.SetnxUuidHolder,
        "set-nx-px": locks.SetNxPxHolder,
    },
    "2.10.6": {
        "redis-py-lua": released.redis_py_lua,
        "redis-py-setnx": released.redis_py_setnx,
        "redis-netlock": released.NetlockHolder,
        "celery-once": released.CeleryOnceHolder,
    },
    "6.4.0": {
        "member": locks.MemberHolder,
    },
}[redis.__version__]


class Usage(Exception):
    """A wrong command line or command."""


# ---------------------------------------------------------------- command line


class Options:
    """KIND URL [name=value ...]. Times are in ms."""

    def __init__(self, args):
        if len(args) < 2:
            raise Usage("want KIND redis://[user:pass@]host:port/db [name=value ...]")
        self.kind, url = args[:2]
        self.url = url
        parts = urlsplit(url)
        if parts.scheme != "redis" or not parts.hostname:
            raise Usage("not a redis:// URL: " + url)
        if parts.username not in (None, "", "default"):
            raise Usage("redis-py 2 knows no users; use redis://:password@host:port/db")
        self.server = {
            "host": parts.hostname,
            "port": parts.port or 6379,
            "db": int(parts.path.strip("/") or 0),
            "password": unquote(parts.password) if parts.password else None,
        }
        self.book = self.server
        self.id = "%s-%d" % (self.kind, os.getpid())
        self.numbers = {}
        self.namespace = ""
        for arg in args[2:]:
            name, _, value = arg.partition("=")
            if name == "id":
                self.id = value
            elif name in ("lease", "wait", "poll", "clock"):
                self.numbers[name] = whole(value)
            elif name == "namespace":
                self.namespace = value
            elif name == "book":
                host, _, port = value.rpartition(":")
                self.book = {"host": host, "port": whole(port), "db": 0, "password": None}
            else:
                raise Usage("unknown option %s; want id, lease, wait, poll, clock, book, namespace" % arg)

    def number(self, name, default):
        value = self.numbers.get(name, default)
        if value < 0:
            raise Usage(name + " must not be negative")
        return value

    def wait_or_forever(self):
        return max(FOREVER, self.numbers.get("wait", FOREVER))

    def without(self, *names):
        """Refuses options that this kind would silently ignore."""
        for name in names:
            if name in self.numbers:
                raise Usage("kind %s has no %s" % (self.kind, name))


def whole(word):
    try:
        return int(word)
    except ValueError:
        raise Usage("not a number: " + word) from None




# ---------------------------------------------------------------- line protocol


output = threading.Lock()


def event(name, **fields):
    """One line, written whole and unbuffered: a holder killed at any moment has said all that it did."""
    fields = {k.replace("class_", "class"): v for k, v in fields.items()}
    line = json.dumps(dict({"event": name}, **fields), separators=(",", ":")).encode("ascii") + b"\n"
    with output:
        while line:
            line = line[os.write(1, line):]


def error(op, e, **fields):
    event("error", op=op, class_=class_name(e), message=str(e), **fields)


def elapsed_ms(start):
    return int((time.monotonic() - start) * 1000)


def bye():
    """Ends without closing anything: what is held stays held, as it would in a crash."""
    event("bye")
    os._exit(0)


class Referee:
    """Counts who is inside a lock, over a connection that the lock does not use."""

    def __init__(self, options):
        self.options = options
        self.client = None

    def _redis(self):
        if self.client is None:
            self.client = connect(redis.StrictRedis, self.options.book)
        return self.client

    def enter(self, referee):
        self._redis().hset(referee, self.options.id, 1)

    def inside(self, referee):
        return self._redis().hlen(referee)

    def leave(self, referee):
        self._redis().hdel(referee, self.options.id)
        self._redis().incr(referee + ":turns")


class Turns:
    """The `turns` command: N times acquire, enter, hold, leave, release."""

    def __init__(self, holder, referee, stopped):
        self.holder = holder
        self.referee = referee
        self.stopped = stopped
        self.busy = 0
        self.errors = 0

    def run(self, key, counter, turns, hold_ms):
        done = overlaps = 0
        while done < turns and not self.stopped():
            start = time.monotonic()
            if not self._acquire(key):
                break
            waited = elapsed_ms(start)
            done += 1
            inside = self._inside(counter, done, hold_ms)
            overlaps += inside > 1
            self._release(key)
            event("turn", key=key, n=done, inside=inside, waited_ms=waited)
        event("done", turns=done, overlaps=overlaps, errors=self.errors, busy=self.busy)

    def _acquire(self, key):
        """Tries until acquired; False when stopped before that."""
        wait = SLICE_MS if self.holder.wait_ms == FOREVER else self.holder.wait_ms
        while not self.stopped():
            start = time.monotonic()
            try:
                if self.holder.acquire(key, wait)[0]:
                    return True
                self.busy += 1
            except Exception as e:
                self._failed("acquire", key, e)
            # An attempt that waited by itself is repeated at once, a shorter one only after a whole poll.
            time.sleep(max(0, self.holder.poll_ms - elapsed_ms(start)) / 1000.0)
        return False

    def _inside(self, counter, n, hold_ms):
        inside = 0
        try:
            self.referee.enter(counter)
            event("entered", n=n)
            inside = self.referee.inside(counter)
        except Exception as e:
            self._failed("referee", counter, e)
        time.sleep(hold_ms / 1000.0)
        for _ in range(LEAVE_TRIES):
            try:
                self.referee.leave(counter)
                break
            except Exception as e:
                self._failed("referee", counter, e)
                time.sleep(max(10, self.holder.poll_ms) / 1000.0)
        return inside

    def _release(self, key):
        try:
            self.holder.release(key)
        except Exception as e:
            self._failed("release", key, e)
            time.sleep(self.holder.poll_ms / 1000.0)

    def _failed(self, op, key, e):
        self.errors += 1
        error(op, e, key=key)


class Inbox:
    """Reads stdin on a thread of its own, so that `stop` and the end of the input are heard during `turns`."""

    def __init__(self, at_end):
        self.lines = queue.Queue()
        self.stopped = 0  # commands with a smaller number came before the last `stop`
        self.at_end = at_end
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self):
        number = 0
        for raw in sys.stdin.buffer:
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            number += 1
            if line == "quit":
                break
            if line == "stop":
                self.stopped = number
            elif line:
                self.lines.put((number, line))
        self.stopped = math.inf
        self.lines.put((number, None))
        self.at_end()


class Console:
    """Commands on stdin, events on stdout."""

    def __init__(self, holder, referee, options):
        self.holder = holder
        self.referee = referee
        self.options = options
        self.inbox = Inbox(self._leave_in_time)
        self.commands = {
            "acquire": (1, self._acquire),
            "try": (1, self._try),
            "release": (1, self._release),
            "renew": (1, self._unsupported),
            "count": (1, self._unsupported),
            "clock": (1, self._clock),
            "parse": (2, self._parse),
            "turns": (4, self._turns),
        }

    def run(self):
        event("ready", kind=self.options.kind, version=self.holder.version, pid=os.getpid(), id=self.options.id)
        while True:
            self.number, line = self.inbox.lines.get()
            if line is None:
                bye()
            op, *words = line.split(" ")
            try:
                count, run = self.commands.get(op, (None, None))
                if run is None:
                    raise Usage("unknown command " + op)
                if len(words) != count:
                    raise Usage("%s wants %d words" % (op, count))
                run(*words)
            except Unsupported:
                event("unsupported", op=op)
            except Usage as e:
                event("error", op="protocol", class_="usage", message=str(e))
            except Exception as e:
                error(op, e, **({"key": words[0]} if words else {}))

    def _acquire(self, key):
        self._attempt(key, self.holder.wait_ms)

    def _try(self, key):
        self._attempt(key, 0)

    def _attempt(self, key, wait_ms):
        start = time.monotonic()
        acquired, value = self.holder.acquire(key, wait_ms)
        waited = elapsed_ms(start)
        if acquired:
            event("acquired", key=key, waited_ms=waited, value=value)
        else:
            event("busy", key=key, waited_ms=waited)

    def _release(self, key):
        event("released", key=key, removed=self.holder.release(key))

    def _unsupported(self, key):
        raise Unsupported()

    def _clock(self, offset):
        self.holder.clock(whole(offset))
        event("clock", offset_ms=whole(offset))

    def _parse(self, now, value):
        try:
            decoded = base64.b64decode(value, validate=True)
        except binascii.Error:
            raise Usage("not base64: " + value) from None
        event("parsed", **self.holder.parse(whole(now), decoded))

    def _turns(self, key, counter, turns, hold_ms):
        number = self.number
        Turns(self.holder, self.referee, lambda: number < self.inbox.stopped).run(
            key, counter, whole(turns), whole(hold_ms)
        )

    def _leave_in_time(self):
        time.sleep((GRACE_MS + max(0, self.holder.wait_ms)) / 1000.0)
        bye()


def main(args):
    try:
        options = Options(args)
        if options.kind not in KINDS:
            raise Usage("unknown kind %s; want %s" % (options.kind, ", ".join(sorted(KINDS))))
        holder = KINDS[options.kind](options)
    except Usage as e:
        print("holder: %s" % e, file=sys.stderr)
        return 2
    except redis.RedisError as e:
        print("holder: cannot start: %s" % e, file=sys.stderr)
        return 1
    Console(holder, Referee(options), options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
