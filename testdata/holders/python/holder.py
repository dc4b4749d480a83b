"""holder.py: the Python holders, real lock code that the Go test suites run against.

Usage: holder.py KIND redis://[user:pass@]host:port/db [name=value ...]
../README.md describes the kinds and the line protocol. Runs on CPython 3.8 and later with redis-py 2.9.1.
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
import uuid
from urllib.parse import unquote, urlsplit

import redis
import redis.client

FOREVER = -1
SLICE_MS = 1000  # a blocking acquire inside `turns` is cut into slices of this length, so that `stop` is heard
GRACE_MS = 10_000  # after the end of the input, a command that still waits gets this long
LEAVE_TRIES = 50  # a referee's field that stays behind would look like an overlap for ever

# KEYS[1] the lock, ARGV[1] the token. Replies 1 when the key was removed, else 0. One script, because between a GET
# and a DEL the lock could expire and become another's.
UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Usage(Exception):
    """A wrong command line or command."""


class Unsupported(Exception):
    """A command that a kind does not have."""


# ---------------------------------------------------------------- command line


class Options:
    """KIND URL [name=value ...]. Times are in ms."""

    def __init__(self, args):
        if len(args) < 2:
            raise Usage("want KIND redis://[user:pass@]host:port/db [name=value ...]")
        self.kind, url = args[:2]
        parts = urlsplit(url)
        if parts.scheme != "redis" or not parts.hostname:
            raise Usage("not a redis:// URL: " + url)
        if parts.username not in (None, "", "default"):
            raise Usage("redis-py 2.9.1 knows no users; use redis://:password@host:port/db")
        self.server = {
            "host": parts.hostname,
            "port": parts.port or 6379,
            "db": int(parts.path.strip("/") or 0),
            "password": unquote(parts.password) if parts.password else None,
        }
        self.book = self.server
        self.id = "%s-%d" % (self.kind, os.getpid())
        self.numbers = {}
        for arg in args[2:]:
            name, _, value = arg.partition("=")
            if name == "id":
                self.id = value
            elif name in ("lease", "wait", "poll", "clock"):
                self.numbers[name] = whole(value)
            elif name == "book":
                host, _, port = value.rpartition(":")
                self.book = {"host": host, "port": whole(port), "db": 0, "password": None}
            else:
                raise Usage("unknown option %s; want id, lease, wait, poll, clock, book" % arg)

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


def connect(make, server):
    """Connects at once, so that the first acquire is not slower than the others."""
    client = make(**server)
    pool = client.connection_pool
    connection = pool.get_connection("_")
    connection.connect()
    pool.release(connection)
    return client


# ---------------------------------------------------------------- kinds


class Holder:
    """What one kind of lock can do. acquire returns (acquired, value); exceptions of the lock's code pass through."""

    version = "redis-py " + redis.__version__
    wait_ms = 0
    poll_ms = 100

    def acquire(self, key, wait_ms):
        raise NotImplementedError

    def release(self, key):
        """Whether the key was removed; None where the lock's own code does not tell."""
        raise NotImplementedError

    def parse(self, now_ms, value):
        raise Unsupported()

    def clock(self, offset_ms):
        raise Unsupported()


class WaitOver(BaseException):
    """Ends a wait that the lock's own code has no end for. A BaseException, so that no `except Exception` eats it."""


class ModTime:
    """Stands in for the time module inside redis.client: a wall clock that can be moved, sleeps that can end.

    Lock's own code stays as released; it only calls this time() and this sleep().
    """

    def __init__(self, offset_ms):
        self.offset = offset_ms / 1000.0
        self.frozen = None
        self.deadline = math.inf

    def __getattr__(self, name):
        return getattr(time, name)

    def time(self):
        return time.time() + self.offset if self.frozen is None else self.frozen

    def sleep(self, seconds):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise WaitOver()
        time.sleep(min(seconds, left))


class Spy:
    """Stands in for the client of a Lock that only reads: the key is taken, its value is known."""

    def __init__(self, value):
        self.value = value
        self.overwritten = False

    def setnx(self, name, value):
        return False

    def get(self, name):
        return self.value

    def getset(self, name, value):
        self.overwritten = True
        return self.value


class RedisPyHolder(Holder):
    """Kind `redis-py`: redis.client.Lock of redis-py 2.9.1, unmodified (dialect C).

    lease=0 is Lock's default, no timeout, which writes 2147483649.0. Without a wait, acquire blocks for ever.
    """

    def __init__(self, options):
        self.lease = options.number("lease", 0) / 1000.0 or None
        self.wait_ms = options.wait_or_forever()
        self.poll_ms = options.number("poll", 100)
        self.time = redis.client.mod_time = ModTime(options.numbers.get("clock", 0))
        self.client = connect(redis.StrictRedis, options.server)
        self.locks = {}

    def acquire(self, key, wait_ms):
        lock = self._lock(key)
        try:
            self.time.deadline = math.inf if wait_ms == FOREVER else time.monotonic() + wait_ms / 1000.0
            acquired = lock.acquire(blocking=wait_ms != 0)
        except WaitOver:
            acquired = False
        finally:
            self.time.deadline = math.inf
        return acquired, repr(lock.acquired_until) if acquired else None

    def release(self, key):
        self._lock(key).release()

    def parse(self, now_ms, value):
        """Lets Lock.acquire itself judge the value: whether it goes on to GETSET."""
        spy = Spy(value)
        self.time.frozen = now_ms / 1000.0
        try:
            redis.client.Lock(spy, "parse").acquire(blocking=False)
        except (ValueError, OverflowError) as e:
            return {"reading": "throws", "number": None, "class": class_name(e), "message": str(e)}
        finally:
            self.time.frozen = None
        return {"reading": "expired" if spy.overwritten else "live", "number": repr(float(value or 1))}

    def clock(self, offset_ms):
        self.time.offset = offset_ms / 1000.0

    def _lock(self, key):
        if key not in self.locks:
            self.locks[key] = self.client.lock(key, timeout=self.lease, sleep=self.poll_ms / 1000.0)
        return self.locks[key]


class SetnxUuidHolder(Holder):
    """Kind `setnx-uuid`: article 002's lock, SETNX with a uuid and no TTL, released by WATCH and MULTI (t1).

    The article spins without a pause; poll=0 does that too. It prefixes keys with `lock:`; here the caller does.
    """

    def __init__(self, options):
        options.without("lease", "clock")
        self.wait_ms = options.number("wait", 30_000)
        self.poll_ms = options.number("poll", 10)
        self.client = connect(redis.Redis, options.server)
        self.identifiers = {}

    def acquire(self, key, wait_ms):
        identifier = str(uuid.uuid4())
        end = time.monotonic() + wait_ms / 1000.0
        while True:
            if self.client.setnx(key, identifier):
                self.identifiers[key] = identifier
                return True, identifier
            if time.monotonic() >= end:
                return False, None
            time.sleep(self.poll_ms / 1000.0)

    def release(self, key):
        identifier = self.identifiers.pop(key, None)
        pipe = self.client.pipeline(True)
        while True:
            try:
                pipe.watch(key)
                # As in the article: a key that is gone has no decode(), and AttributeError comes out.
                if pipe.get(key).decode() == identifier:
                    pipe.multi()
                    pipe.delete(key)
                    pipe.execute()
                    return True
                pipe.unwatch()
                return False
            except redis.exceptions.WatchError:
                pass


class SetNxPxHolder(Holder):
    """Kind `set-nx-px`: SET NX PX with a uuid, retries x sleep, compare-and-delete script (t3)."""

    def __init__(self, options):
        options.without("clock")
        self.lease_ms = options.number("lease", 60_000)
        self.wait_ms = options.number("wait", 3_000)
        self.poll_ms = max(1, options.number("poll", 1_000))
        self.client = connect(redis.StrictRedis, options.server)
        self.tokens = {}

    def acquire(self, key, wait_ms):
        retries = wait_ms // self.poll_ms
        while True:
            token = str(uuid.uuid4())
            if self.client.execute_command("SET", key, token, "NX", "PX", self.lease_ms):
                self.tokens[key] = token
                return True, token
            if retries <= 0:
                return False, None
            retries -= 1
            time.sleep(self.poll_ms / 1000.0)

    def release(self, key):
        token = self.tokens.pop(key, None)
        return token is not None and self.client.eval(UNLOCK, 1, key, token) == 1


KINDS = {"redis-py": RedisPyHolder, "setnx-uuid": SetnxUuidHolder, "set-nx-px": SetNxPxHolder}


# ---------------------------------------------------------------- line protocol


def class_name(e):
    kind = type(e)
    return kind.__name__ if kind.__module__ == "builtins" else kind.__module__ + "." + kind.__name__


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
