"""The protocols as step machines: generators that yield what to do next and are sent what came of it. They know no clock and no connection, so one
text serves threads and asyncio. They are those of the Go library (internal/protocol), which its explorer searches.

A machine yields a Call, a Command, a Transaction or a Pause. It is sent a Reply, or for a Pause the word that woke it (None: the time is over).
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generator, List, NamedTuple, Optional, Tuple

from ._protocol import Dialect, Terms, ms
from ._scripts import companions


class Call(NamedTuple):
    script: str
    values: Dict[str, Any]


class Command(NamedTuple):
    args: Tuple[Any, ...]


class Transaction(NamedTuple):
    """WATCH and GET of a key; if it still holds `value`, MULTI, the call, EXEC. The reply is the call's; nil where the key has changed."""

    key: bytes
    value: bytes
    call: Call


class Pause(NamedTuple):
    seconds: float
    token: Optional[bytes] = None  # a grant to this token wakes


class Grant(NamedTuple):
    ticket: int  # 0: somebody else's word that the key may be ours; look
    fence: int


class Reply(NamedTuple):
    """What came of a command: a value; or a refusal by the server; or silence: it may have run."""

    value: Any = None
    fault: Optional[BaseException] = None
    silent: Optional[BaseException] = None

    @property
    def row(self) -> List[Any]:
        return self.value if isinstance(self.value, list) else [self.value]

    @property
    def code(self) -> Any:
        return self.row[0]


Machine = Generator[Any, Any, "Outcome"]


@dataclass
class Outcome:
    """How a machine ended. verdict: acquired, busy, foreign, failed, unsure; renewed, repaired, displaced, lost; released, nothing."""

    verdict: str
    until: float = 0.0  # acquired, renewed: the deadline on the monotonic clock
    fence: int = 0
    seen: bytes = b""
    error: Optional[BaseException] = None


@dataclass
class Held:
    """What stands on the server for a lock of ours: enough to renew it and to give it back."""

    key: bytes
    terms: Terms
    stage: int
    value: bytes
    since: float = 0.0  # on the monotonic clock, when it was known to be ours
    pending: bytes = b""  # stage legacy: what a renewal without an answer may have written
    doubt: bool = False  # stage legacy: value may stand on the key, and may be a twin's there that computed the same one
    entry: str = ""  # ours in the queue
    stood: str = ""  # the one before it
    names: Dict[str, bytes] = field(default_factory=dict)


MOST_SETTLES = 8
Clock = Callable[[], float]
Bound = Callable[[], int]


def bridge_values(h: Held, **more: Any) -> Dict[str, Any]:
    """The arguments of the bridge's scripts, by the names in their headers."""
    t, d = h.terms, h.terms.dialect
    grace = -1 if h.stage == 2 else ms(t.grace)
    values: Dict[str, Any] = dict(h.names)
    values.update(
        value=h.value, ttl=ms(t.ttl), not_after=0, fence_ttl=ms(t.fence_ttl), gap=ms(t.gap), held=0, behind=0, breath=d.breath_ms, hand=0, entry=h.entry,
        stood=h.stood, queue_ttl=0, rules="%d %s %s %d" % (grace, d.unit, "plain" if d.layout == "plain" else d.layout, ms(t.gap)),
    )
    if not t.fence_ttl:
        values["fence"] = h.key
    if not t.gap:
        values["yield"] = h.key
    values.update(more)
    return values


def bridge_acquire(h: Held, now: Clock, bound: Bound, until: float, channel: Optional[Callable[[], str]]) -> Machine:
    """Takes a lock that old clients and token clients on the same key both respect; waits in its queue until the monotonic clock reads `until`.

    channel says where a grant to us is heard, "-" for nowhere; None makes one attempt that takes no place in the queue. After a takeover the
    lock settles: an old client's GETSET may be under way. A live legacy value is never overwritten: the machine withdraws.
    """
    t, again, doubt = h.terms, False, False
    while True:
        more: Dict[str, Any] = {}
        not_after = bound()
        if channel is None:
            more["queue"] = h.key
        else:
            entry = "%d %d 1 %s %s" % (ms(t.claim), not_after, channel(), h.value.decode("latin-1"))
            if entry != h.entry:
                h.stood, h.entry = h.entry, entry
            more["queue_ttl"] = ms(90 + t.ttl)
        sent = now()
        reply = yield Call("bridge_acquire", bridge_values(h, not_after=not_after, **more))
        if reply.silent:
            doubt = True
            if not again:
                again = True
                continue
            return (yield from _drop(h, Outcome("failed", error=reply.silent)))
        if reply.fault:
            if again or _within(reply.fault):
                return (yield from _drop(h, Outcome("failed", error=reply.fault)))
            return Outcome("failed", error=reply.fault)
        again = False
        row, seen = reply.row, b""
        numbers = [n for n in row if isinstance(n, int)] + [0, 0, 0, 0]
        for element in row:
            if isinstance(element, bytes):
                seen = element
        code, second, wait, ticket = numbers[:4]
        if code > 0:
            h.entry = h.stood = ""
            settles = h.stage != 2 and (code == 2 or t.dialect.settles_free or (code == 3 and doubt))
            if not settles:
                return Outcome("acquired", until=sent + t.ttl, fence=second)
            outcome = yield from _settle(h, now, bound, second)
            if outcome is not None:
                return outcome
            continue
        h.stood = ""
        before = second
        left = until - now()
        verdict = "foreign" if code < 0 else "busy"
        if left <= 0 or channel is None:
            if h.entry:
                return (yield from _drop(h, Outcome(verdict, seen=seen)))
            return Outcome(verdict, seen=seen)
        pause = t.dialect.poll if wait < 0 else min(t.dialect.poll, wait / 1000.0)
        if before > 0 and channel() != "-":
            pause = min(5.0, (wait if wait > 0 else 5000) / 1000.0 * (before + 1))
        asked = sent
        woken = yield Pause(min(left, max(pause, 0.001)), h.value)
        if isinstance(woken, Grant) and woken.ticket and woken.ticket == ticket and now() - asked < t.claim / 2 and (woken.fence or not t.fence_ttl):
            h.entry = h.stood = ""
            return Outcome("acquired", until=asked + t.claim, fence=woken.fence)


def _settle(h: Held, now: Clock, bound: Bound, fence: int) -> Generator[Any, Any, Optional[Outcome]]:
    """Waits for longer than an old client needs from its GET to its GETSET, and looks. None: the lock is another's; go on waiting."""
    for _ in range(MOST_SETTLES):
        yield Pause(h.terms.delay)
        for twice in (False, True):
            sent = now()
            reply = yield Call("bridge_settle", bridge_values(h, not_after=bound()))
            if not reply.silent:
                break
        if reply.silent or reply.fault:
            return (yield from _drop(h, Outcome("failed", error=reply.silent or reply.fault)))
        if reply.code == 1:
            return Outcome("acquired", until=sent + h.terms.ttl, fence=fence)
        if reply.code != 2:
            return None
    return (yield from _drop(h, Outcome("busy")))


def _drop(h: Held, outcome: Outcome) -> Machine:
    """Gives back what may be ours; unsure where no answer comes: the caller tries again behind."""
    values = bridge_values(h)
    for _ in range(3):
        reply = yield Call("bridge_release", values)
        if not reply.silent and not reply.fault:
            h.entry = h.stood = ""
            return outcome
        if reply.fault:
            values = _bare(h, values)
    return Outcome("unsure", error=reply.silent or reply.fault)


def bridge_renew(h: Held, now: Clock, bound: Bound) -> Machine:
    """Extends the lease. A key that a stale DEL has removed is set again; another's value in our place means that the lock is lost."""
    for twice in (False, True):
        sent = now()
        reply = yield Call("bridge_renew", bridge_values(h, not_after=bound()))
        if not reply.silent:
            break
    if reply.silent:
        return Outcome("unsure", error=reply.silent)
    if reply.fault:
        return Outcome("unsure" if twice else "failed", error=reply.fault)
    if reply.code == 1 or reply.code == 2:
        return Outcome("renewed" if reply.code == 1 else "repaired", until=sent + h.terms.ttl)
    return Outcome("displaced" if reply.code == -1 else "lost", seen=_text(reply))


def bridge_release(h: Held, now: Clock, behind: int) -> Machine:
    """Deletes key and guard where they are ours, or hands both to the first in the queue. A displacement is told before the guard goes."""
    more: Dict[str, Any] = {"hand": 1, "behind": behind, "held": int((now() - h.since) * 1000) if h.since else 0}
    lost_reply = bare = False
    while True:
        values = bridge_values(h, **more)
        if bare:
            values = _bare(h, values)
        reply = yield Call("bridge_release", values)
        if reply.silent:
            if lost_reply:
                return Outcome("unsure", error=reply.silent)
            lost_reply = True
            continue
        if reply.fault:
            if bare:
                return Outcome("unsure" if lost_reply else "failed", error=reply.fault)
            bare = True
            continue
        if reply.code == -1:
            seen = _text(reply)
            if more.get("hand"):
                more = {"hand": 0}
                yield Call("bridge_release", bridge_values(h, **more))
            if seen and seen == h.terms.dialect.leftover:
                yield Call("compare_del", {"key": h.key, "value": seen, "token": seen})
            return Outcome("displaced", seen=seen)
        if reply.code == 0 and not lost_reply:
            return Outcome("nothing")
        return Outcome("released")


def _within(error: BaseException) -> bool:
    """Whether a script was broken off in the middle: what it did before that stands. A server that takes no writes has refused the first one."""
    return "user_script" in str(error) and not any(word in "%s %s" % (type(error).__name__, error) for word in ("ReadOnly", "READONLY", "NOREPLICAS", "MISCONF"))


def _bare(h: Held, values: Dict[str, Any]) -> Dict[str, Any]:
    """The release that names no key but the lock's own two: one beside them was refused."""
    return dict(values, **{"fence": h.key, "queue": h.key, "yield": h.key, "gap": 0, "fence_ttl": 0, "behind": 0, "held": 0, "entry": "", "stood": ""})


def _text(reply: Reply) -> bytes:
    for element in reply.row:
        if isinstance(element, bytes):
            return element
    return b""


def legacy_acquire(h: Held, now: Clock, server_ms: Clock, bound: Bound, until: float) -> Machine:
    """The old lock, for a member at stage legacy: SETNX; where the lease on the key is over by the server's clock, GETSET (or WATCH and MULTI), and what
    it replaced says who won. Each write carries the bound of the member's lease and respects a bridge holder's guard."""
    d, owner = h.terms.dialect, h.terms.dialect.owner()

    def write(command: str, value: bytes) -> Call:
        return Call("gated_write", {"key": h.key, "guard": h.names["guard"], "command": command, "value": value, "not_after": bound()})

    while True:
        sent = now()
        h.value = d.expiry(server_ms(), h.terms.lease, owner)
        seen, foreign = b"", False
        call, doubt = write("SETNX", h.value), False
        for again in (False, True):
            h.doubt = True
            reply = yield call
            if reply.code == 1:
                return Outcome("acquired", until=sent + h.terms.lease)
            if reply.fault and doubt:
                return Outcome("unsure", error=reply.fault)
            h.doubt = doubt = doubt or bool(reply.silent)
            held_by_bridge = "HELD " in str(reply.fault)
            if reply.fault and not held_by_bridge and not _wrong_type(reply.fault):
                return Outcome("failed", error=reply.fault)
            got = yield Command(("GET", h.key))
            if again or not reply.silent or got.silent or got.fault or got.value is not None:
                break  # else the lost SETNX may arrive yet: if it does, the second one finds the key taken
        h.doubt = doubt and (bool(got.silent) or got.value == h.value)
        if got.silent or (got.fault and not _wrong_type(got.fault)):
            return Outcome("unsure" if doubt else "failed", error=got.silent or got.fault)
        if got.fault:
            foreign = True
        elif got.value is not None and not held_by_bridge:
            seen = got.value
            if seen == h.value and (doubt or d.unique):  # a SETNX whose reply was lost
                return Outcome("acquired" if d.unique else "unsure", until=sent + h.terms.lease, error=reply.silent)
            over = d.expired(seen, server_ms())
            foreign = over is None
            if over:
                if d.transaction:
                    h.value = b'"' + h.value + b'"' if d.quotes else h.value
                    call = write("SET", h.value)
                    h.doubt = True
                    took = yield Transaction(h.key, seen, call)
                    won = took.value is not None
                else:
                    call = write("GETSET", h.value)
                    h.doubt = True
                    took = yield call
                    old = took.value
                    won = old is None if not took.fault and not took.silent else False
                    if old is not None:
                        won = old == seen if d.win == "read" else bool(d.expired(old, server_ms()))
                if took.silent:
                    look = yield Command(("GET", h.key))
                    if look.silent or look.fault or look.value == h.value:
                        return Outcome("unsure", error=took.silent)  # it ran, and what it replaced will never be known
                elif took.fault and "HELD " not in str(took.fault):
                    h.doubt = False
                    return Outcome("failed", error=took.fault)
                elif won:
                    return Outcome("acquired", until=sent + h.terms.lease)
                h.doubt = False  # a loser's value on the key is not ours to delete
        left = until - now()
        if left <= 0:
            return Outcome("foreign" if foreign else "busy", seen=seen)
        yield Pause(min(left, d.poll))


def _wrong_type(error: BaseException) -> bool:
    return "WRONGTYPE" in str(error)


def legacy_renew(h: Held, now: Clock, server_ms: Clock, bound: Bound) -> Machine:
    """Moves the lease by compare-and-set. After a renewal without an answer the key holds the old value or the new one: that is settled first."""

    def replace(old: bytes, new: bytes) -> Call:
        return Call("gated_compare_set", {"key": h.key, "old": old, "value": new, "not_after": bound()})

    if h.pending:
        reply = yield replace(h.value, h.pending)
        if reply.silent or reply.fault:
            return Outcome("unsure", error=reply.silent or reply.fault)
        h.value, h.pending = h.pending, b""
    sent = now()
    d = h.terms.dialect
    owner = d._number(h.value) and h.value.decode("latin-1").partition(":")[0] if d.layout == "uuid" else d.owner()
    fresh = d.expiry(server_ms(), h.terms.lease, owner)
    h.pending = fresh
    reply = yield replace(h.value, fresh)
    if reply.silent:
        return Outcome("unsure", error=reply.silent)
    if reply.fault:
        h.pending = b""
        return Outcome("failed", error=reply.fault)
    if reply.code != 1:
        return Outcome("lost")
    h.value, h.pending = fresh, b""
    return Outcome("renewed", until=sent + h.terms.lease)


def legacy_release(h: Held) -> Machine:
    """Compare-and-delete, so that it never deletes a successor's key. The older of two values that may stand there is asked for first."""
    doubt = False
    for value in (h.value, h.pending):
        if not value:
            continue
        for _ in range(2):
            reply = yield Call("compare_del", {"key": h.key, "value": value, "token": value})
            if not reply.silent:
                break
            doubt = True
        if reply.silent or reply.fault:
            return Outcome("unsure" if doubt else "failed", error=reply.silent or reply.fault)
        if reply.code == 1:
            return Outcome("released")
    return Outcome("released" if doubt else "nothing")
