"""What can go wrong with a lock."""
from __future__ import annotations

from typing import Optional


class LockError(Exception):
    """The root of this library's errors. `key` is the lock's key, `cause` the server's or the connection's error behind it."""

    def __init__(self, message: str, key: str = "", cause: Optional[BaseException] = None) -> None:
        super().__init__(message)
        self.key, self.cause = key, cause


class NotAcquired(LockError):
    """Another client holds the lock, or may. Nothing of ours is on the key."""


class ForeignFormat(NotAcquired):
    """The key holds a value that is not of the fleet's dialect. It counts as held and is never taken over. `value` is what stands there."""

    value: bytes = b""


class LockLost(LockError):
    """We held the lock and do not any more, or can no longer be sure that we do. `reason`: deadline, taken, displaced or closed."""

    reason: str = "deadline"


class StageError(LockError):
    """The namespace does not allow it: there is none, this member's lease is over, or its options do not fit the record."""


class UnknownOutcome(LockError):
    """A command may have run, and nothing that may be asked settles it. The key may stay taken until a lease is over."""
