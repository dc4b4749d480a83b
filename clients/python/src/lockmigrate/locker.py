"""The Locker for threads, over redis-py."""
from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, Optional, Type, Union
from contextlib import contextmanager

import redis

from ._core import Core, Lease, Steps
from ._machines import Call, Command, Grant, Pause, Reply, Transaction
from ._member import STAGES
from ._scripts import SCRIPTS
from .errors import LockLost

REFUSED = (redis.exceptions.ResponseError,)
SILENT = (redis.exceptions.RedisError, OSError)  # whatever else it is, nobody knows whether the command ran


# get_connection needs a name before redis-py 5.3, and is deprecated with one since.
_FEW = tuple(int(n) for n in redis.__version__.split(".")[:2]) >= (5, 3)


class _Waits:
    """Who sleeps, by what wakes them."""

    def __init__(self) -> None:
        self.mu = threading.Lock()
        self.sleepers: Dict[bytes, Grant] = {}
        self.anybody = threading.Condition(self.mu)
        self.rounds = 0

    def wake(self, token: Optional[bytes], grant: Optional[Grant]) -> None:
        with self.mu:
            if token is None:
                self.rounds += 1
            else:
                self.sleepers[token] = grant or Grant(0, 0)
            self.anybody.notify_all()

    def forget(self, token: bytes) -> None:
        with self.mu:
            self.sleepers.pop(token, None)

    def sleep(self, pause: Pause, closed: Callable[[], bool]) -> Optional[Grant]:
        if pause.token is None:
            time.sleep(pause.seconds)
            return None
        until = time.monotonic() + pause.seconds
        with self.mu:
            rounds = self.rounds
            while not closed():
                if pause.token in self.sleepers:
                    return self.sleepers.pop(pause.token)
                left = until - time.monotonic()
                if left <= 0 or rounds != self.rounds:
                    return None
                self.anybody.wait(min(left, 3600.0))
            return None


class Locker:
    """Locks on keys that a fleet shares. It is safe for threads.

    client       a `redis.Redis`, on one server or behind sentinels; give it a `socket_timeout` below `ttl`, or a server that falls silent holds calls up.
                 With `decode_responses` the dialect jboot is refused.
    namespace    the record that says which stage to run (`lockmigrate stage`). The Locker becomes a member: it reports three times in each 15 s, and
                 acquires nothing when no report has come through for that long.
    stage        without a namespace: "bridge" (the default) beside old clients, or "modern" where there are none.
    dialect      of the old clients; with a namespace the record's, else jedis-ms.
    ttl          seconds; after a crash of its holder others wait for this long. A lock is renewed while it is held.
    lease        seconds; of a lock at stage legacy. 0: 30, or the record's shortest lease.
    fence_ttl    seconds that a key's fencing counter outlives its last use; at least twice ttl. 0: no fencing tokens.
    member       what this process is called in `lockmigrate stage`.
    """

    def __init__(self, client: Any, namespace: str = "", *, stage: str = "", dialect: str = "", ttl: float = 30.0, lease: float = 0.0,
                 fence_ttl: float = 0.0, member: str = "") -> None:
        self._client, self._waits, self._closed = client, _Waits(), threading.Event()
        self._core = Core(namespace, stage, dialect, ttl, lease, fence_ttl, member, self._spawn, self._waits.wake, self._waits.forget)
        self._threads: Dict[str, threading.Thread] = {}
        self._mu = threading.Lock()
        if namespace:
            self._start("reports", lambda: self._drive(self._core.reports()))

    # What users call.

    def ready(self, timeout: Optional[float] = None) -> None:
        """Returns when this Locker may acquire. StageError says what is in the way."""
        self._drive(self._core.ready(timeout))

    @property
    def stage(self) -> str:
        """The stage that attempts run now; empty where it is not known yet."""
        order = self._core.gate.order
        return STAGES[order.stage] if order is not None else ""

    def try_acquire(self, key: Union[str, bytes]) -> "Lock":
        """One attempt, past all waiters. NotAcquired: another holds the lock."""
        return self._got(self._drive(self._core.acquire(key, 0, once=True)))

    def acquire(self, key: Union[str, bytes], wait: Optional[float] = None) -> "Lock":
        """Waits in the key's queue, for `wait` seconds or for ever. NotAcquired when the wait is over."""
        self._start("listens", self._listen)
        return self._got(self._drive(self._core.acquire(key, wait, once=False)))

    @contextmanager
    def hold(self, key: Union[str, bytes], wait: Optional[float] = None) -> Iterator["Lock"]:
        """Holds the lock while the block runs. If it was lost, LockLost is raised at the end, whatever the block did: the work may have overlapped another
        holder's. An error of the block comes first, with the loss as its context."""
        with self.acquire(key, wait) as lock:
            yield lock

    def close(self) -> None:
        """Ends the renewals and says goodbye. Release locks first: those that are held are lost to their holders at once, and stay on the server until
        their leases end."""
        if self._closed.is_set():
            return
        for lease in list(self._core.leases):
            self._core.lose(lease, "closed", "the Locker was closed")
        self._core.gate.close()
        self._closed.set()
        self._waits.wake(None, None)
        self._waits.wake(b"\0renew", None)
        self._waits.wake(b"\0report", None)
        for thread in list(self._threads.values()):
            if thread is not threading.current_thread():
                thread.join(10)
        try:
            self._drive(self._core.goodbye(), even_closed=True)
        except redis.exceptions.RedisError:
            pass  # the lease runs out by itself

    def __enter__(self) -> "Locker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What drives the generators.

    def _got(self, lease: Lease) -> "Lock":
        self._start("renews", lambda: self._drive(self._core.renewals()))
        return Lock(self, lease)

    def _start(self, name: str, target: Callable[[], Any]) -> None:
        with self._mu:
            if name not in self._threads and not self._closed.is_set():
                self._threads[name] = threading.Thread(target=self._guarded(target), name="lockmigrate-" + name, daemon=True)
                self._threads[name].start()

    def _guarded(self, target: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            try:
                target()
            except _Closed:
                pass

        return run

    def _spawn(self, steps: Steps) -> None:
        threading.Thread(target=self._guarded(lambda: self._drive(steps)), name="lockmigrate-behind", daemon=True).start()

    def _drive(self, steps: Steps, even_closed: bool = False) -> Any:
        answer: Any = None
        try:
            while True:
                request = steps.send(answer)
                try:
                    answer = self._perform(request, even_closed)
                except BaseException as error:
                    answer = None
                    steps.throw(error)
                    raise
        except StopIteration as end:
            return end.value

    def _perform(self, request: Any, even_closed: bool) -> Any:
        if isinstance(request, Pause):
            if self._closed.is_set() and not even_closed and request.token is not None and request.token.startswith(b"\0"):
                raise _Closed()
            return self._waits.sleep(request, self._closed.is_set)
        try:
            if isinstance(request, Command):
                return Reply(_plain(self._client, self._once(*request.args)))
            if isinstance(request, Transaction):
                return self._transaction(request)
            return Reply(_plain(self._client, self._call(request)))
        except REFUSED as error:
            return Reply(fault=error)
        except SILENT as error:
            return Reply(silent=error)

    def _once(self, *args: Any) -> Any:
        """Sends a command once: a client that repeats what stayed without an answer, as redis-py 6 does, hides that it may have run twice."""
        pool = self._client.connection_pool
        connection = pool.get_connection(*(() if _FEW else ("_",)))
        whole = False
        try:
            connection.send_command(*args)
            answer = connection.read_response()
            whole = True
            return answer
        except REFUSED:
            whole = True
            raise
        finally:
            if not whole:
                connection.disconnect()
            pool.release(connection)

    def _call(self, call: Call) -> Any:
        script = SCRIPTS[call.script]
        n, args = script.call(call.values)
        try:
            return self._once("EVALSHA", script.digest, n, *args)
        except redis.exceptions.NoScriptError:
            return self._once("EVAL", script.text, n, *args)

    def _transaction(self, request: Transaction) -> Reply:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.watch(request.key)
            if _plain(self._client, pipe.execute_command("GET", request.key)) != request.value:
                return Reply(None)
            pipe.multi()
            script = SCRIPTS[request.call.script]
            n, args = script.call(request.call.values)
            pipe.execute_command("EVAL", script.text, n, *args)  # a NOSCRIPT inside MULTI would come too late
            try:
                return Reply(_plain(self._client, pipe.execute())[0])
            except redis.exceptions.WatchError:
                return Reply(None)

    def _listen(self) -> None:
        """Hears of grants, on a connection of its own; while there is none, waiters poll."""
        pause = 0.1
        while not self._closed.is_set():
            pubsub = self._client.pubsub(ignore_subscribe_messages=False)
            try:
                pubsub.subscribe(self._core.channel)
                while not self._closed.is_set():
                    message = pubsub.get_message(timeout=1.0)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        self._core.hears, pause = True, 0.1
                        self._waits.wake(None, None)
                    elif message["type"] == "message":
                        data = _plain(self._client, message["data"])
                        first, _, rest = data.partition(b" ")
                        self._core.heard(first, rest)
            except (redis.exceptions.RedisError, OSError, ValueError):
                self._core.hears = False
                self._closed.wait(pause)
                pause = min(2 * pause, 5.0)
            finally:
                pubsub.close()


class _Closed(BaseException):
    """Ends a background loop."""


class Lock:
    """A lock that we hold, or held. Any thread may call its methods."""

    def __init__(self, locker: Locker, lease: Lease) -> None:
        self._locker, self._lease = locker, lease

    @property
    def key(self) -> bytes:
        return self._lease.held.key

    @property
    def stage(self) -> str:
        """In which way the key is held. A lock that outlives a stage change is renewed and released in the way it was taken."""
        return STAGES[self._lease.held.stage]

    @property
    def token(self) -> bytes:
        """What we wrote on the key."""
        return self._lease.held.value

    @property
    def fence(self) -> int:
        """Larger than every earlier holder's: a store can refuse a smaller one. 0 without `fence_ttl`, and at stage legacy."""
        return self._lease.fence

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is certainly ours if no renewal succeeds any more."""
        return 0.0 if self._lease.lost else max(0.0, self._lease.until - time.monotonic())

    def alive(self) -> bool:
        """False: the lock is lost. Stop working."""
        return self.remaining > 0.0

    def check(self) -> None:
        """Raises LockLost where the lock is lost: call it before a step that must not be done twice."""
        if not self.alive():
            raise self._lease.lost or LockLost("lock %r lost: its lease is over" % self.key, self.key.decode("utf-8", "backslashreplace"))

    def on_lost(self, call: Callable[[LockLost], None]) -> None:
        """Calls back once, on a thread of the Locker, when the lock is lost; at once, where it is already."""
        self._lease.on_lost = call
        if self._lease.lost is not None:
            call(self._lease.lost)

    def renew(self) -> None:
        """Extends the lease now. The Locker renews by itself."""
        self._locker._drive(self._locker._core.renew(self._lease))

    def release(self) -> None:
        """Gives the lock back. LockLost: it was lost before. UnknownOutcome: no answer came; the Locker tries again until the lease is over."""
        self._locker._drive(self._locker._core.release(self._lease), even_closed=True)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.__context__ = lost


def _plain(client: Any, value: Any) -> Any:
    """Replies as bytes, also of a client that decodes them."""
    if isinstance(value, str):
        kwargs = client.connection_pool.connection_kwargs
        return value.encode(kwargs.get("encoding", "utf-8"), kwargs.get("encoding_errors", "strict"))
    if isinstance(value, (list, tuple)):
        return [_plain(client, element) for element in value]
    return value
