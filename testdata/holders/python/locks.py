"""locks.py: the kinds of lock on redis-py alone, and what every kind is made of."""
import math
import os
import sys
import time
import uuid

import redis
import redis.client

FOREVER = -1

# KEYS[1] the lock, ARGV[1] the token. Replies 1 when the key was removed, else 0. One script, because between a GET
# and a DEL the lock could expire and become another's.
UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Unsupported(Exception):
    """A command that a kind does not have."""


def connect(make, server):
    """Connects at once, so that the first acquire is not slower than the others."""
    client = make(**server)
    pool = client.connection_pool
    connection = pool.get_connection("_")
    connection.connect()
    pool.release(connection)
    return client


def class_name(e):
    kind = type(e)
    return kind.__name__ if kind.__module__ == "builtins" else kind.__module__ + "." + kind.__name__


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


class MemberHolder(Holder):
    """Kind `member`: the library clients/python, as a member of a namespace. lease is its TTL."""

    def __init__(self, options):
        options.without("clock", "poll")
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../clients/python/src"))
        import lockmigrate

        self.lib = lockmigrate
        self.version = "clients/python, redis-py " + redis.__version__
        self.wait_ms = options.number("wait", 10_000)
        ttl = options.number("lease", 10_000) / 1000.0
        client = redis.Redis(socket_timeout=ttl / 2, **options.server)
        self.locker = lockmigrate.Locker(client, options.namespace, ttl=ttl, member=options.id)
        self.locker.ready(timeout=60)  # connects, and comes over a server that is started again
        self.locks = {}

    def acquire(self, key, wait_ms):
        try:
            self.locks[key] = self.locker.try_acquire(key) if wait_ms == 0 else self.locker.acquire(key, None if wait_ms == FOREVER else wait_ms / 1000.0)
        except self.lib.NotAcquired:
            return False, None
        return True, self.locks[key].token.decode("latin-1")

    def release(self, key):
        self.locks.pop(key).release()
