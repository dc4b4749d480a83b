"""The Locker for asyncio, over redis.asyncio (redis-py 4.2 or later)."""
from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Coroutine, Dict, Optional, Set, Type, Union

import redis.asyncio as aredis
from redis.exceptions import NoScriptError, RedisError, WatchError

from ._core import Core, Lease, Steps
from ._machines import Call, Command, Grant, Pause, Reply, Transaction
from ._member import STAGES
from ._scripts import SCRIPTS
from .errors import LockLost
from .locker import _FEW, REFUSED, SILENT, _Closed, _plain

__all__ = ["Lock", "Locker"]


class Locker:
    """`lockmigrate.Locker` for one event loop; make it while that loop runs. A cancelled call gives back behind what it may have taken."""

    def __init__(self, client: Any, namespace: str = "", *, stage: str = "", dialect: str = "", ttl: float = 30.0, lease: float = 0.0,
                 fence_ttl: float = 0.0, member: str = "") -> None:
        self._client, self._closed = client, False
        self._sleepers: Dict[bytes, Set["asyncio.Future[Optional[Grant]]"]] = {}
        self._told: Dict[bytes, Grant] = {}
        self._core = Core(namespace, stage, dialect, ttl, lease, fence_ttl, member, self._spawn, self._wake, lambda token: self._told.pop(token, None) and None)
        self._tasks: Dict[str, "asyncio.Task[None]"] = {}
        self._behind: Set["asyncio.Task[None]"] = set()
        if namespace:
            self._start("reports", lambda: self._drive(self._core.reports()))

    async def ready(self, timeout: Optional[float] = None) -> None:
        """Returns when this Locker may acquire. StageError says what is in the way."""
        await self._drive(self._core.ready(timeout))

    @property
    def stage(self) -> str:
        """The stage that attempts run now; empty where it is not known yet."""
        order = self._core.gate.order
        return STAGES[order.stage] if order is not None else ""

    async def try_acquire(self, key: Union[str, bytes]) -> "Lock":
        """One attempt, past all waiters. NotAcquired: another holds the lock."""
        return self._got(await self._drive(self._core.acquire(key, 0, once=True)))

    async def acquire(self, key: Union[str, bytes], wait: Optional[float] = None) -> "Lock":
        """Waits in the key's queue, for `wait` seconds or for ever. NotAcquired when the wait is over."""
        self._start("listens", self._listen)
        return self._got(await self._drive(self._core.acquire(key, wait, once=False)))

    @asynccontextmanager
    async def hold(self, key: Union[str, bytes], wait: Optional[float] = None) -> AsyncIterator["Lock"]:
        """Holds the lock while the block runs; LockLost at its end where the lock was lost meanwhile."""
        async with await self.acquire(key, wait) as lock:
            yield lock

    async def close(self) -> None:
        """Ends the renewals and says goodbye. Release locks first: those that are held are lost to their holders at once."""
        if self._closed:
            return
        for lease in list(self._core.leases):
            self._core.lose(lease, "closed", "the Locker was closed")
        self._core.gate.close()
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        try:
            await self._drive(self._core.goodbye())
        except RedisError:
            pass  # the lease runs out by itself

    async def __aenter__(self) -> "Locker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _got(self, lease: Lease) -> "Lock":
        self._start("renews", lambda: self._drive(self._core.renewals()))
        return Lock(self, lease)

    def _start(self, name: str, target: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        if name not in self._tasks and not self._closed:
            self._tasks[name] = asyncio.get_running_loop().create_task(self._guarded(target()))

    @staticmethod
    async def _guarded(target: Coroutine[Any, Any, Any]) -> None:
        try:
            await target
        except _Closed:
            pass

    def _spawn(self, steps: Steps) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(self._drive(steps)))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    def _wake(self, token: Optional[bytes], grant: Optional[Grant]) -> None:
        if token is None:
            sleepers, self._sleepers = self._sleepers, {}
            for one in sleepers.values():
                self._rouse(one, None)
            return
        if token in self._sleepers:
            self._rouse(self._sleepers.pop(token), grant or Grant(0, 0))
        else:
            self._told[token] = grant or Grant(0, 0)

    @staticmethod
    def _rouse(futures: Set["asyncio.Future[Optional[Grant]]"], grant: Optional[Grant]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(grant)

    async def _drive(self, steps: Steps) -> Any:
        answer: Any = None
        try:
            while True:
                request = steps.send(answer)
                try:
                    answer = await self._perform(request)
                except BaseException as error:
                    answer = None
                    steps.throw(error)
                    raise
        except StopIteration as end:
            return end.value

    async def _perform(self, request: Any) -> Any:
        if isinstance(request, Pause):
            if self._closed and request.token is not None and request.token.startswith(b"\0"):
                raise _Closed()
            return await self._sleep(request)
        try:
            if isinstance(request, Command):
                return Reply(_plain(self._client, await self._once(*request.args)))
            if isinstance(request, Transaction):
                return await self._transaction(request)
            return Reply(_plain(self._client, await self._call(request)))
        except REFUSED as error:
            return Reply(fault=error)
        except SILENT as error:
            return Reply(silent=error)

    async def _sleep(self, pause: Pause) -> Optional[Grant]:
        if pause.token is None:
            await asyncio.sleep(pause.seconds)
            return None
        if pause.token in self._told:
            return self._told.pop(pause.token)
        future: "asyncio.Future[Optional[Grant]]" = asyncio.get_running_loop().create_future()
        self._sleepers.setdefault(pause.token, set()).add(future)
        try:  # not wait_for: before Python 3.12 it may swallow a cancellation that comes together with the answer
            await asyncio.wait({future}, timeout=min(pause.seconds, 3600.0))
            return future.result() if future.done() else None
        finally:
            waiting = self._sleepers.get(pause.token)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._sleepers[pause.token]

    async def _once(self, *args: Any) -> Any:
        """Sends a command once, as the threads' Locker does."""
        pool = self._client.connection_pool
        connection = await pool.get_connection(*(() if _FEW else ("_",)))
        whole = False
        try:
            await connection.send_command(*args)
            answer = await connection.read_response()
            whole = True
            return answer
        except REFUSED:
            whole = True
            raise
        finally:
            if not whole:
                await connection.disconnect(nowait=True)
            await pool.release(connection)

    async def _call(self, call: Call) -> Any:
        script = SCRIPTS[call.script]
        n, args = script.call(call.values)
        try:
            return await self._once("EVALSHA", script.digest, n, *args)
        except NoScriptError:
            return await self._once("EVAL", script.text, n, *args)

    async def _transaction(self, request: Transaction) -> Reply:
        async with self._client.pipeline(transaction=True) as pipe:
            await pipe.watch(request.key)
            if _plain(self._client, await pipe.execute_command("GET", request.key)) != request.value:
                return Reply(None)
            pipe.multi()
            script = SCRIPTS[request.call.script]
            n, args = script.call(request.call.values)
            pipe.execute_command("EVAL", script.text, n, *args)  # a NOSCRIPT inside MULTI would come too late
            try:
                return Reply(_plain(self._client, await pipe.execute())[0])
            except WatchError:
                return Reply(None)

    async def _listen(self) -> None:
        """Hears of grants, on a connection of its own; while there is none, waiters poll."""
        pause = 0.1
        while not self._closed:
            pubsub: Any = self._client.pubsub()
            try:
                await pubsub.subscribe(self._core.channel)
                while not self._closed:
                    message = await pubsub.get_message(timeout=60.0)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        self._core.hears, pause = True, 0.1
                        self._wake(None, None)
                    elif message["type"] == "message":
                        first, _, rest = _plain(self._client, message["data"]).partition(b" ")
                        self._core.heard(first, rest)
            except (RedisError, OSError, ValueError):
                self._core.hears = False
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
            finally:
                await (pubsub.aclose() if hasattr(pubsub, "aclose") else pubsub.close())


class Lock:
    """A lock that we hold, or held."""

    def __init__(self, locker: Locker, lease: Lease) -> None:
        self._locker, self._lease = locker, lease

    @property
    def key(self) -> bytes:
        return self._lease.held.key

    @property
    def stage(self) -> str:
        """In which way the key is held."""
        return STAGES[self._lease.held.stage]

    @property
    def token(self) -> bytes:
        """What we wrote on the key."""
        return self._lease.held.value

    @property
    def fence(self) -> int:
        """Larger than every earlier holder's; 0 without `fence_ttl`, and at stage legacy."""
        return self._lease.fence

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is certainly ours if no renewal succeeds any more."""
        return 0.0 if self._lease.lost else max(0.0, self._lease.until - time.monotonic())

    def alive(self) -> bool:
        """False: the lock is lost. Stop working."""
        return self.remaining > 0.0

    def check(self) -> None:
        """Raises LockLost where the lock is lost."""
        if not self.alive():
            raise self._lease.lost or LockLost("lock %r lost: its lease is over" % self.key, self.key.decode("utf-8", "backslashreplace"))

    def on_lost(self, call: Callable[[LockLost], None]) -> None:
        """Calls back once when the lock is lost; at once, where it is already. `on_lost(lambda _: task.cancel())` ends the work."""
        self._lease.on_lost = call
        if self._lease.lost is not None:
            call(self._lease.lost)

    async def renew(self) -> None:
        """Extends the lease now. The Locker renews by itself."""
        await self._locker._drive(self._locker._core.renew(self._lease))

    async def release(self) -> None:
        """Gives the lock back. LockLost: it was lost before."""
        await self._locker._drive(self._locker._core.release(self._lease))

    async def __aenter__(self) -> "Lock":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            await self.release()
        except LockLost as lost:
            if error is None:
                raise
            error.__context__ = lost
