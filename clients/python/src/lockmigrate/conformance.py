"""The driver for `lockmigrate conformance`: `python -m lockmigrate.conformance` answers requests on stdin, see docs/conformance.md."""
from __future__ import annotations

import json
import platform
import sys
import threading
from typing import Any, Dict

import redis

from . import ForeignFormat, Lock, Locker, LockLost, NotAcquired, StageError, UnknownOutcome, __version__

WORDS = ((ForeignFormat, "foreign"), (NotAcquired, "refused"), (LockLost, "lost"), (UnknownOutcome, "unknown"), (StageError, "stage"))


class Driver:
    def __init__(self) -> None:
        self.lockers: Dict[str, Locker] = {}
        self.locks: Dict[str, Lock] = {}
        self.mu = threading.Lock()

    def say(self, what: Dict[str, Any]) -> None:
        with self.mu:
            print(json.dumps(what), flush=True)

    def answer(self, request: Dict[str, Any]) -> None:
        try:
            result = dict(getattr(self, request["do"])(request) or {}, ok=True)
        except Exception as error:
            word = next((word for kind, word in WORDS if isinstance(error, kind)), "failed")
            result = {"error": "failed" if str(error) == "the Locker is closed" else word, "text": str(error)}
        self.say(dict(result, id=request["id"]))

    def hello(self, _: Dict[str, Any]) -> Dict[str, Any]:
        return {"name": "lockmigrate-python", "version": __version__, "language": "python %s, redis-py %s" % (platform.python_version(), redis.__version__),
                "levels": [1, 2, 3, 4], "can": ["legacy", "queue", "fence"]}

    def open(self, r: Dict[str, Any]) -> None:
        client = redis.Redis.from_url(r["redis"], socket_timeout=r["reply_ms"] / 1000)
        self.lockers[r["locker"]] = Locker(client, r["namespace"], ttl=r["ttl_ms"] / 1000, lease=r.get("lease_ms", 0) / 1000,
                                           fence_ttl=r.get("fence_ttl_ms", 0) / 1000, member=r.get("member", ""))
        self.lockers[r["locker"]].ready(10)

    def acquire(self, r: Dict[str, Any]) -> Dict[str, Any]:
        locker, name = self.lockers[r["locker"]], r["lock"]
        lock = locker.acquire(r["key"], r["wait_ms"] / 1000) if r.get("wait_ms") else locker.try_acquire(r["key"])
        self.locks[name] = lock
        lock.on_lost(lambda loss: self.say({"event": "lost", "lock": name, "reason": loss.reason}))
        return {"token": lock.token.decode("latin-1"), "fence": lock.fence, "stage": lock.stage}

    def check(self, r: Dict[str, Any]) -> Dict[str, Any]:
        return {"alive": self.locks[r["lock"]].alive()}

    def release(self, r: Dict[str, Any]) -> None:
        self.locks.pop(r["lock"]).release()

    def close(self, r: Dict[str, Any]) -> None:
        self.lockers.pop(r["locker"]).close()


def main() -> None:
    driver = Driver()
    for line in sys.stdin:
        threading.Thread(target=driver.answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
