"""released.py: locks of released packages, unmodified, each on a redis-py of its time.

A kind imports its package itself: which packages are there depends on the environment, see ../README.md.
"""
import math
import sys
import time
import types

import redis

from locks import FOREVER, Holder, ModTime, WaitOver, connect


class Waiting:
    """Bounds the waits of a lock whose code sleeps through a ModTime."""

    def __init__(self, mod_time, wait_ms):
        self.time = mod_time
        self.deadline = math.inf if wait_ms == FOREVER else time.monotonic() + wait_ms / 1000.0

    def __enter__(self):
        self.time.deadline = self.deadline

    def __exit__(self, *_):
        self.time.deadline = math.inf


class OneAttempt(Holder):
    """For locks whose code tries once: the wait and the pauses between attempts are the holder's."""

    def __init__(self, options):
        self.wait_ms = options.number("wait", 10_000)
        self.poll_ms = options.number("poll", 100)
        self.client = connect(redis.StrictRedis, options.server)

    def acquire(self, key, wait_ms):
        end = time.monotonic() + wait_ms / 1000.0
        while True:
            acquired, value = self.attempt(key)
            if acquired or time.monotonic() >= end:
                return acquired, value
            time.sleep(self.poll_ms / 1000.0)

    def attempt(self, key):
        raise NotImplementedError


def whole_seconds(options, default_ms):
    """The lease in s, for locks that know no smaller unit."""
    return max(1, round(options.number("lease", default_ms) / 1000.0))


class RedisPyTokenHolder(Holder):
    """Kinds `redis-py-lua` and `redis-py-setnx`: the Lock of redis-py 2.10.6, with scripts (its default) or without.

    lease=0 is Lock's default, no timeout: a key without a TTL.
    """

    def __init__(self, options, lock_class):
        options.without("clock")
        self.lease = options.number("lease", 0) / 1000.0 or None
        self.wait_ms = options.wait_or_forever()
        self.poll_ms = options.number("poll", 100)
        self.client = connect(redis.StrictRedis, options.server)
        self.lock_class = lock_class
        self.locks = {}

    def acquire(self, key, wait_ms):
        if key not in self.locks:
            self.locks[key] = self.client.lock(
                key, timeout=self.lease, sleep=self.poll_ms / 1000.0, lock_class=self.lock_class
            )
        lock = self.locks[key]
        acquired = lock.acquire(blocking=wait_ms != 0, blocking_timeout=None if wait_ms == FOREVER else wait_ms / 1000.0)
        return acquired, lock.local.token.decode() if acquired else None

    def release(self, key):
        self.locks[key].release()


def redis_py_lua(options):
    from redis.lock import LuaLock

    return RedisPyTokenHolder(options, LuaLock)


def redis_py_setnx(options):
    from redis.lock import Lock

    return RedisPyTokenHolder(options, Lock)


class RedisLockHolder(OneAttempt):
    """Kind `redis-lock`: redis_lock.RedisLock of redis-lock 0.2.0, in whole seconds."""

    version = "redis-lock 0.2.0, " + Holder.version

    def __init__(self, options):
        import redis_lock

        super().__init__(options)
        self.lease = whole_seconds(options, 300_000)
        self.time = redis_lock.time = ModTime(options.numbers.get("clock", 0))
        self.make = redis_lock.RedisLock
        self.held = {}

    def attempt(self, key):
        lock = self.make(self.client, lock_key=key, lock_timeout=self.lease)
        if not lock.acquire():
            return False, None
        self.held[key] = lock
        return True, str(lock.acquire_time + self.lease + 1)

    def release(self, key):
        self.held.pop(key).release()

    def clock(self, offset_ms):
        self.time.offset = offset_ms / 1000.0


class RetoolsHolder(Holder):
    """Kind `retools`: retools.lock.Lock of retools 0.3. It tries once a second; its wait is in whole seconds."""

    version = "retools 0.3, " + Holder.version

    def __init__(self, options):
        import retools.lock

        options.without("poll")
        self.lease = options.number("lease", 60_000) / 1000.0
        self.wait_ms = options.number("wait", 10_000)
        self.poll_ms = 1000
        self.time = retools.lock.time = ModTime(options.numbers.get("clock", 0))
        self.lock, self.timed_out = retools.lock.Lock, retools.lock.LockTimeout
        self.client = connect(redis.StrictRedis, options.server)
        self.held = {}

    def acquire(self, key, wait_ms):
        lock = self.lock(key, expires=self.lease, timeout=wait_ms // 1000, redis=self.client)
        try:
            lock.__enter__()
        except self.timed_out:
            return False, None
        self.held[key] = lock
        return True, None

    def release(self, key):
        self.held.pop(key).__exit__(None, None, None)

    def clock(self, offset_ms):
        self.time.offset = offset_ms / 1000.0


class NetlockHolder(Holder):
    """Kind `redis-netlock`: redis_netlock.dist_lock of redis-netlock 1.6: GET, SETNX of 1, EXPIRE.

    dist_lock puts `lock_` before the key; here the caller does. Its two halves are called each for itself: dist_lock
    deletes the key when its wait ends with an exception, and this holder ends a wait that way.
    """

    version = "redis-netlock 1.6, " + Holder.version

    def __init__(self, options):
        import redis_netlock

        options.without("clock", "poll")
        redis_netlock.DEFAULT_EXPIRES = whole_seconds(options, 15_000)
        self.wait_ms = options.wait_or_forever()
        self.poll_ms = 30
        self.time = redis_netlock.time = ModTime(0)
        self.module = redis_netlock
        self.client = connect(redis.StrictRedis, options.server)

    def acquire(self, key, wait_ms):
        try:
            with Waiting(self.time, wait_ms):
                return self.module._acquire_lock(key, self.client), "1"
        except WaitOver:
            return False, None

    def release(self, key):
        self.module._release_lock(key, self.client)


class CeleryOnceHolder(OneAttempt):
    """Kind `celery-once`: the Redis backend of celery_once 1.2.0: GET, SETEX. It looks once and then writes.

    The backend's module also imports celery for a class that is not used here; a stand-in takes celery's place.
    """

    version = "celery_once 1.2.0, " + Holder.version

    def __init__(self, options):
        celery, result = types.ModuleType("celery"), types.ModuleType("celery.result")
        celery.Task, celery.states, result.EagerResult = object, None, None
        sys.modules.setdefault("celery", celery)
        sys.modules.setdefault("celery.result", result)
        import celery_once.helpers
        from celery_once.backends.redis import Redis

        super().__init__(options)
        self.lease = whole_seconds(options, 3_600_000)
        self.time = ModTime(options.numbers.get("clock", 0))
        celery_once.helpers.time = self.time.time
        self.queued = celery_once.AlreadyQueued
        self.backend = Redis({"url": options.url})
        connect(lambda: self.backend.redis, {})

    def attempt(self, key):
        try:
            self.backend.raise_or_lock(key, self.lease)
        except self.queued:
            return False, None
        return True, None

    def release(self, key):
        return self.backend.clear_lock(key) == 1

    def clock(self, offset_ms):
        self.time.offset = offset_ms / 1000.0
