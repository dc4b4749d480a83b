"""Redis locks that live through a migration.

A Locker follows its namespace: at stage legacy it locks as the old SETNX/GETSET clients of the fleet do, at stage bridge so that they and token
clients respect it, at stage modern by a token with a TTL. `lockmigrate next` leads the fleet from one to the next; the program stays the same.

    locker = lockmigrate.Locker(redis.Redis(host="redis.internal", socket_timeout=5), "orders")
    locker.ready(timeout=10)
    with locker.hold("lock.order.17", wait=30) as lock:
        ship()
        lock.check()  # raises LockLost before the step that must not be done twice

`lockmigrate.aio.Locker` is the same for asyncio.
"""
__version__ = "0.1.0"

from .errors import ForeignFormat, LockError, LockLost, NotAcquired, StageError, UnknownOutcome  # noqa: E402
from .locker import Lock, Locker  # noqa: E402

__all__ = ["ForeignFormat", "Lock", "LockError", "LockLost", "Locker", "NotAcquired", "StageError", "UnknownOutcome"]
