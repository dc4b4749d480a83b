"""The Locker without a connection: generators that both the threaded and the asyncio Locker drive."""
from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generator, List, Optional, Set, Union

from . import _machines as machines
from ._machines import Grant, Held, Outcome, Pause
from ._member import STAGES, Changed, Gate, Member, NotNow, Permit
from ._protocol import DIALECTS, Terms
from ._scripts import companions
from .errors import ForeignFormat, LockError, LockLost, NotAcquired, StageError, UnknownOutcome

Steps = Generator[Any, Any, Any]
FOREVER = float("inf")


@dataclass
class Lease:
    """The life of one lock: what stands on the server, until when it is certainly ours, and how it ended."""

    held: Held
    permit: Permit
    until: float  # on the monotonic clock
    due: float  # when the next renewal is
    fence: int
    lost: Optional[LockLost] = None
    busy: bool = False  # a renewal is under way
    resting: bool = False  # a release was asked for: nothing renews it any more
    gone: bool = False
    on_lost: Optional[Callable[[LockLost], None]] = None


class Core:
    """What a Locker is made of. `spawn` runs a generator behind the caller; `wake` wakes waiters (a token, or None for all) and the renewals."""

    def __init__(self, namespace: str, stage: str, dialect: str, ttl: float, lease: float, fence_ttl: float, member: str,
                 spawn: Callable[[Steps], None], wake: Callable[[Optional[bytes], Optional[Grant]], None], forget: Callable[[bytes], None]) -> None:
        if ttl < 0.01 or lease < 0 or fence_ttl < 0:
            raise ValueError("ttl %r, lease %r, fence_ttl %r: seconds, ttl at least 0.01" % (ttl, lease, fence_ttl))
        if dialect and dialect not in DIALECTS:
            raise ValueError("no dialect is named %r; known are %s" % (dialect, ", ".join(DIALECTS)))
        if namespace and stage:
            raise ValueError("the namespace's record says which stage to run: leave stage out")
        self.spawn, self._wake, self._forget, self.channel = spawn, wake, forget, "lockmigrate:wake:" + secrets.token_hex(8)
        self.hears = False  # the channel is subscribed
        self.gate = Gate(lambda token: wake(token, None))
        self.member: Optional[Member] = None
        if namespace:
            self.member = Member(namespace, member, self.gate, {"ttl": ttl, "lease": lease, "fence_ttl": fence_ttl, "dialect": dialect})
        else:
            if stage not in ("", "bridge", "modern"):
                raise ValueError("stage %r: bridge or modern; stage legacy needs a namespace" % stage)
            terms = Terms(dialect=DIALECTS[dialect or "jedis-ms"], ttl=ttl, fence_ttl=fence_ttl, gap=min(DIALECTS[dialect or "jedis-ms"].poll * 1.2, 20.0))
            if terms.problem():
                raise ValueError(terms.problem())
            self.gate.fix(STAGES.index(stage or "bridge"), terms)
        self._mu = threading.Lock()
        self.leases: List[Lease] = []
        self.waiting: Dict[bytes, int] = {}
        self._expected: Set[bytes] = set()

    # Acquisitions.

    def acquire(self, key: Union[str, bytes], wait: Optional[float], once: bool) -> Steps:
        """Takes the lock and returns its Lease."""
        raw = key.encode() if isinstance(key, str) else key
        if not raw:
            raise ValueError("the key is empty")
        until = time.monotonic() + (FOREVER if wait is None else max(wait, 0.0)) if not once else 0.0
        if not once:
            with self._mu:
                self.waiting[raw] = self.waiting.get(raw, 0) + 1
        try:
            while True:
                try:
                    permit = self.gate.enter(raw)
                except NotNow as why:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise StageError(str(why), _name(raw)) from None
                    yield Pause(min(left, 0.25), b"")
                    continue
                lease = yield from self._attempt(raw, permit, until, once)
                if lease is not None:
                    return lease
        finally:
            if not once:
                with self._mu:
                    self.waiting[raw] -= 1
                    if not self.waiting[raw]:
                        del self.waiting[raw]

    def _attempt(self, key: bytes, permit: Permit, until: float, once: bool) -> Steps:
        """One acquisition in one stage. None: the stage has changed."""
        terms, stage = permit.terms, permit.order.stage
        h = Held(key=key, terms=terms, stage=stage, value=b"" if stage == 0 else terms.dialect.bridge_value(), names=companions(key))
        now = time.monotonic
        bound = lambda: self.gate.bound(permit)  # noqa: E731
        began = now()
        if stage:
            self._expected.add(h.value)
        try:
            if stage == 0:
                assert self.member is not None
                outcome = yield from machines.legacy_acquire(h, now, self.member.server_ms, bound, until)
            else:
                outcome = yield from machines.bridge_acquire(h, now, bound, until, None if once else self._channel)
        except Changed:
            yield from self._undone(h, permit)
            return None
        except BaseException:  # the caller has left in the middle
            self.spawn(self._give_back(h, permit, began))
            raise
        finally:
            self._expected.discard(h.value)
            self._forget(h.value)
        if outcome.verdict == "acquired":
            h.doubt, h.since = False, now()
        if outcome.verdict == "acquired" and now() < outcome.until:
            lease = Lease(held=h, permit=permit, until=outcome.until, due=0.0, fence=outcome.fence)
            every = terms.lease / 3 if stage == 0 else terms.renew
            lease.due = min(now() + every, outcome.until - (outcome.until - now()) / 2)
            self.gate.acquired(permit)
            with self._mu:
                self.leases.append(lease)
            self._wake(b"\0renew", None)
            return lease
        if outcome.verdict in ("acquired", "unsure") or h.entry:
            self.spawn(self._give_back(h, permit, began))
        else:
            permit.leave()
        name = _name(key)
        if outcome.verdict == "acquired":
            if not once and now() < until:
                return None  # it came too late to be used; what it took is given back behind
            raise NotAcquired("%s: the answer came after the end of the lease that it gave" % name, name)
        if outcome.verdict == "foreign":
            foreign = ForeignFormat("%s holds %r, which is not of dialect %s; it counts as held and is never taken over" % (name, outcome.seen, terms.dialect.name), name)
            foreign.value = outcome.seen
            raise foreign
        if outcome.verdict == "busy":
            raise NotAcquired("%s is held%s" % (name, ": %r" % outcome.seen if outcome.seen else ""), name)
        late = "STAGE " in str(outcome.error)
        if late and not once and outcome.verdict == "failed":
            return None  # it came after the member's lease: the gate says when the next attempt may begin
        kind = UnknownOutcome if outcome.verdict == "unsure" else StageError if late else LockError
        raise kind("acquire %s: %s: %s" % (name, type(outcome.error).__name__, outcome.error), name, outcome.error) from outcome.error

    def heard(self, first: bytes, rest: bytes) -> None:
        """A word on the channel: `head TOKEN`, the key may be free; `TICKET FENCE TOKEN`, it is ours."""
        fence, _, token = (b"0", b"", rest) if first == b"head" else rest.partition(b" ")
        if token in self._expected:
            self._wake(token, None if first == b"head" else Grant(int(first), int(fence)))

    def _channel(self) -> str:
        return self.channel if self.hears else "-"

    def _undone(self, h: Held, permit: Permit) -> Steps:
        """Gives back what an attempt has, at once; behind, where that does not succeed."""
        outcome = yield from self._undo(h)
        if outcome.verdict in ("released", "nothing"):
            permit.leave()
        else:
            self.spawn(self._give_back(h, permit, time.monotonic()))
        return outcome

    def _undo(self, h: Held) -> Steps:
        if h.stage:
            return (yield from machines._drop(h, Outcome("released")))
        if h.doubt and not h.terms.dialect.unique:
            return Outcome("unsure")  # the value may be a twin's: its lease has to run out
        if h.since or h.doubt:
            return (yield from machines.legacy_release(h))
        return Outcome("nothing")

    def _give_back(self, h: Held, permit: Permit, began: float) -> Steps:
        """Tries until it is over by itself."""
        over, pause = max(began + h.terms.longest + 5.0, self.gate.until + h.terms.ttl if h.entry else 0.0), 0.05
        while time.monotonic() < over:
            outcome = yield from self._undo(h)
            if outcome.verdict in ("released", "nothing"):
                break
            yield Pause(pause)
            pause = min(2 * pause, 1.0)
        permit.leave()

    # Leases.

    def renewals(self) -> Steps:
        """Has what is due renewed, for as long as the Locker lives, and tells a deadline that passes. It asks nobody itself: a server that is silent
        holds nothing up."""
        while True:
            now = time.monotonic()
            with self._mu:
                live = [lease for lease in self.leases if not lease.gone]
                self.leases = live
            for lease in live:
                if now >= lease.until:
                    self.lose(lease, "deadline", "its lease is over, and no renewal was confirmed in time")
                elif not lease.resting and lease.due <= now:
                    lease.due = FOREVER  # the renewal says when the next one is
                    self.spawn(self._renew_due(lease))
            moments = [min(lease.until, FOREVER if lease.resting else lease.due) for lease in live if not lease.gone]
            yield Pause(max(0.0, min(moments, default=now + 60.0) - time.monotonic()), b"\0renew")

    def _renew_due(self, lease: Lease) -> Steps:
        yield from self._renew(lease)
        self._wake(b"\0renew", None)

    def _renew(self, lease: Lease) -> Steps:
        while True:
            with self._mu:
                if lease.gone or lease.resting:
                    return
                if not lease.busy:
                    lease.busy = True
                    break
            yield Pause(0.002)
        h = lease.held
        try:
            outcome = yield from self._renewal(h)
        finally:
            lease.busy = False
        now = time.monotonic()
        if outcome.verdict in ("renewed", "repaired"):
            if now >= lease.until:
                self.lose(lease, "deadline", "the reply to its renewal came after the deadline")
                return
            lease.until = max(lease.until, outcome.until)
            lease.due = now + (h.terms.lease / 3 if h.stage == 0 else h.terms.renew)
        elif outcome.verdict == "displaced":
            self.lose(lease, "displaced", "another client came in after a stale DEL, or overwrote the key; it holds %r" % outcome.seen)
        elif outcome.verdict == "lost":
            self.lose(lease, "taken", "the key is not ours any more")
        else:
            lease.due = now + max(0.02, min(0.5, (lease.until - now) / 10))

    def _renewal(self, h: Held) -> Steps:
        bound = lambda: self.gate.bound()  # noqa: E731
        if h.stage == 0:
            assert self.member is not None
            return (yield from machines.legacy_renew(h, time.monotonic, self.member.server_ms, bound))
        return (yield from machines.bridge_renew(h, time.monotonic, bound))

    def renew(self, lease: Lease) -> Steps:
        if lease.resting:
            raise LockError("the lock was released", _name(lease.held.key))
        yield from self._renew(lease)
        if lease.lost is not None:
            raise lease.lost

    def lose(self, lease: Lease, reason: str, why: str) -> None:
        with self._mu:
            if lease.gone or lease.lost is not None:
                return
            name = _name(lease.held.key)
            lease.lost, lease.gone = LockLost("lock %s lost: %s" % (name, why), name), True
            lease.lost.reason = reason
        if reason == "deadline":
            lease.permit.leave()
        elif reason != "closed":  # what a closed Locker held stays on the server, and is counted
            self.spawn(self._left(lease))  # the holder may be at work yet
        if lease.on_lost is not None:
            try:
                lease.on_lost(lease.lost)
            except Exception:  # it must not end the renewals of other locks
                logging.getLogger("lockmigrate").exception("on_lost of lock %s", name)

    def _left(self, lease: Lease) -> Steps:
        yield Pause(max(0.0, lease.until - time.monotonic()))
        lease.permit.leave()

    def release(self, lease: Lease) -> Steps:
        """Gives the lock back. LockLost tells that it was lost before."""
        name = _name(lease.held.key)
        with self._mu:
            if lease.resting and lease.gone and lease.lost is None:
                return
            lease.resting = True
        while lease.busy:
            yield Pause(0.002)
        h = lease.held
        if h.stage == 0:
            outcome = yield from machines.legacy_release(h)
        else:
            outcome = yield from machines.bridge_release(h, time.monotonic, max(self.waiting.get(h.key, 0) - 1, 0))
        if outcome.verdict in ("failed", "unsure"):
            self.spawn(self._release_again(lease))
            if lease.lost is not None:
                raise lease.lost
            kind = UnknownOutcome if outcome.verdict == "unsure" else LockError
            raise kind("release %s: %s; it is tried again until its lease is over" % (name, outcome.error), name, outcome.error) from outcome.error
        before = lease.lost
        if before is None and outcome.verdict == "displaced":
            self.lose(lease, "displaced", "another client's value stands on the key: %r" % outcome.seen)
        elif before is None and outcome.verdict == "nothing":
            self.lose(lease, "taken", "the key was not ours any more when it was released")
        lease.gone = True
        lease.permit.leave()
        if lease.lost is not None:
            raise lease.lost

    def _release_again(self, lease: Lease) -> Steps:
        h, pause = lease.held, 0.05
        while time.monotonic() < lease.until:
            yield Pause(pause)
            pause = min(2 * pause, 1.0)
            outcome = yield from (machines.legacy_release(h) if h.stage == 0 else machines.bridge_release(h, time.monotonic, 0))
            if outcome.verdict not in ("failed", "unsure"):
                break
        lease.gone = True
        lease.permit.leave()

    # The member.

    def reports(self) -> Steps:
        if self.member is None:
            return
        while True:
            due = yield from self.member.report()
            yield Pause(max(due, 0.005), b"\0report")

    def ready(self, timeout: Optional[float]) -> Steps:
        """Waits until attempts may begin; the error says what is in the way."""
        until = time.monotonic() + (FOREVER if timeout is None else timeout)
        while True:
            why = self.gate.shut()
            if why is None:
                return
            left = until - time.monotonic()
            if isinstance(why, StageError) or left <= 0:
                raise StageError(str(why)) from None
            yield Pause(min(left, 0.25), b"")

    def goodbye(self) -> Steps:
        if self.member is not None:
            yield from self.member.leave()


def _name(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
