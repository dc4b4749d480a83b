"""A member of a namespace: what it is told, what it may do, and until when. Nothing here knows a connection; one lock guards all of it."""
from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, Generator, List, Optional

from ._machines import Call, Command, Reply
from ._protocol import DIALECTS, Terms, matches
from .errors import StageError

STAGES = ("legacy", "bridge", "modern")


class NotNow(Exception):
    """No attempt may begin at this moment; a later one may."""


class Changed(Exception):
    """The order has changed: an attempt gives back what it has and begins anew."""


@dataclass(frozen=True)
class Order:
    """What the record says, as the last answer told it."""

    epoch: int
    stage: int
    patterns: List[bytes]
    clients: Dict[str, Any]
    ends_ms: int = 0  # of the member's lease, on the server's clock


class Permit:
    """One attempt's, and then one lock's, right to a stage. It is counted until nothing of it can be on the server."""

    def __init__(self, gate: "Gate", order: Order, terms: Terms) -> None:
        self.gate, self.order, self.terms, self.acting, self.left = gate, order, terms, True, False

    def leave(self) -> None:
        self.gate.leave(self)


class Gate:
    """What stands between a Locker and its stage. An attempt's stage is chosen and counted in one step, so that a report never leaves out an attempt that
    has begun."""

    def __init__(self, wake: Any) -> None:
        self._mu, self._wake = threading.Lock(), wake
        self.order: Optional[Order] = None
        self.terms: Optional[Terms] = None
        self.fixed = self.hopeless = self.closed = False
        self.until, self.why = 0.0, "this member has not joined its namespace yet"
        self._in_use, self._acting, self._earlier, self._before = [0, 0, 0], 0, 0, -1

    def _shut(self) -> Optional[Exception]:
        if self.closed:
            return StageError("the Locker is closed")
        if self.fixed:
            return None
        if self.hopeless:
            return StageError(self.why)
        if self.order is None:
            return NotNow(self.why)
        if time.monotonic() < self.until:
            return None
        return NotNow("this member could not report for %.1f s, its lease is over: %s" % (time.monotonic() - self.until, self.why or "no answer"))

    def shut(self) -> Optional[Exception]:
        with self._mu:
            return self._shut()

    def enter(self, key: bytes) -> Permit:
        with self._mu:
            why = self._shut()
            if why is not None:
                raise why
            assert self.order is not None and self.terms is not None
            if not self.fixed and not any(matches(p, key) for p in self.order.patterns):
                raise StageError("the key %r is not of the namespace: %r" % (key, self.order.patterns), key.decode("utf-8", "replace"))
            self._in_use[self.order.stage] += 1
            self._acting += 1
            return Permit(self, self.order, self.terms)

    def bound(self, permit: Optional[Permit] = None) -> int:
        """The last millisecond of the server's clock at which a command of this member may act. An attempt of an earlier order raises Changed."""
        with self._mu:
            if permit is not None:
                why = self._shut()
                if why is not None or self.order is None or (permit.order.epoch, permit.order.stage) != (self.order.epoch, self.order.stage):
                    raise Changed()
            if self.fixed:
                return 0
            return self.order.ends_ms if self.order else 1

    def acquired(self, permit: Permit) -> None:
        with self._mu:
            tell = self._acted(permit)
        if tell:
            self._wake(b"\0report")

    def leave(self, permit: Permit) -> None:
        with self._mu:
            if permit.left:
                return
            permit.left, used = True, permit.order.stage
            self._in_use[used] -= 1
            tell = self._acted(permit) or (self._in_use[used] == 0 and self.order is not None and used != self.order.stage)
        if tell:
            self._wake(b"\0report")

    def _acted(self, permit: Permit) -> bool:
        """Whether that was the last attempt of an earlier order: the record may be waiting for it."""
        if permit.acting:
            permit.acting = False
            if self.order is not None and permit.order.epoch == self.order.epoch:
                self._acting -= 1
            else:
                self._earlier -= 1
                return self._earlier == 0
        return False

    def report(self) -> Dict[str, int]:
        """What this member runs and holds. While an attempt of an earlier order is under way, it runs that one."""
        with self._mu:
            used = [s for s, n in enumerate(self._in_use) if n > 0]
            says = {"epoch": -1, "stage": -1, "lowest": min(used, default=-1), "highest": max(used, default=-1)}
            if self.order is not None and time.monotonic() < self.until:
                says["epoch"] = self._before if self._earlier > 0 else self.order.epoch
                says["stage"] = self.order.stage
            return says

    def obey(self, order: Order, terms: Terms, until: float) -> bool:
        with self._mu:
            news = self.order is None or (order.epoch, order.stage) != (self.order.epoch, self.order.stage)
            was_shut = self._shut() is not None
            if self.order is not None and order.epoch != self.order.epoch:
                if self._earlier == 0:
                    self._before = self.order.epoch
                self._earlier, self._acting = self._earlier + self._acting, 0
            self.order, self.terms, self.until, self.why, self.hopeless = order, terms, until, "", False
        if news or was_shut:
            self._wake(None)
        return news

    def extend(self, order: Order) -> None:
        """What is held may be renewed until the end of a lease that allows nothing new."""
        with self._mu:
            if self.order is not None and order.ends_ms > self.order.ends_ms:
                self.order = Order(self.order.epoch, self.order.stage, self.order.patterns, self.order.clients, order.ends_ms)

    def failed(self, why: str, gone: bool, fits: bool) -> None:
        with self._mu:
            self.why = why
            self.hopeless = not fits or (self.order is None and gone)
            if (gone or not fits) and self.order is not None:
                self.until = min(self.until, time.monotonic())
        self._wake(None)

    def fix(self, stage: int, terms: Terms) -> None:
        self.order, self.terms, self.fixed = Order(0, stage, [], {}), terms, True

    def close(self) -> None:
        with self._mu:
            self.closed = True
        self._wake(None)

    def idle(self) -> bool:
        with self._mu:
            return self._in_use == [0, 0, 0]


class Member:
    """One process of the fleet: it reports, and hands what it is told to the gate. Its methods are generators, as the machines are."""

    def __init__(self, namespace: str, name: str, gate: Gate, options: Dict[str, Any]) -> None:
        self.gate, self.options, self.namespace = gate, options, namespace
        base = b"lockmigrate:{" + namespace.encode() + b"}"
        self.keys = {"record": base + b":stage", "members": base + b":members"}
        host = socket.gethostname()
        self.id = (name + "/" if name else "%s-%d-" % (host, os.getpid())) + secrets.token_hex(4)
        self.info = {"host": host, "pid": os.getpid(), "build": {"program": os.path.basename(sys.argv[0] or "python"), "library": "python " + _version()}}
        self.lease: float = min(max(1.5 * options["ttl"], 0.3), 15.0)
        self._seq = 0
        self._longest, self._misfit = 0.0, ""
        self._server_ms, self._heard, self._bound, self._skew = 0.0, 0.0, 0.0, 0

    def server_ms(self) -> float:
        """The server's clock, as the last answer told it."""
        return self._server_ms + (time.monotonic() - self._heard) * 1000 if self._heard else time.time() * 1000

    def _learn(self, now_ms: int, sent: float) -> None:
        trip = time.monotonic() - sent
        self._server_ms, self._heard = float(now_ms), sent + trip / 2
        self._skew = int(time.time() * 1000 - trip * 500) - now_ms

    def _join(self, **values: Any) -> Call:
        blank = {"id": self.id, "seq": self._seq, "lease": 0, "epoch": -1, "stage": -1, "lowest": -1, "highest": -1, "longest": 0, "skew": 0, "info": "{}", "not_after": 0, "why": ""}
        return Call("stage_join", dict(self.keys, **dict(blank, **values)))

    def report(self) -> Generator[Any, Reply, float]:
        """One report. It returns the seconds until the next one is due."""
        if not self._heard:
            sent = time.monotonic()
            reply = yield self._join()
            if reply.silent or reply.fault:
                return self._unreachable(reply)
            self._learn(reply.row[1], sent)
            if reply.code == 0:
                return self._none()
            order, terms, problem = self._read(reply.row)
            self._misfit = problem
            if terms is not None:
                self._longest = terms.longest
            user = yield Command(("ACL", "WHOAMI"))
            if isinstance(user.value, bytes):
                self.info["user"] = user.value.decode("utf-8", "replace")
        sent = time.monotonic()
        self._seq += 1
        bound = self.server_ms() + self.lease * 1000
        self._bound = max(self._bound, bound)
        reply = yield self._join(
            lease=int(self.lease * 1000), longest=int(self._longest * 1000), skew=self._skew, info=json.dumps(self.info), not_after=int(bound), why=self._misfit[:500],
            **self.gate.report())
        if reply.silent or reply.fault:
            return self._unreachable(reply)
        self._learn(reply.row[1], sent)
        if reply.code == 0:
            return self._none()
        if reply.code == -2:  # the server's clock was set
            return 0.0
        if reply.code < 0:
            why = reply.row[3].decode() if len(reply.row) > 3 and isinstance(reply.row[3], bytes) else "a later report has arrived"
            self.gate.failed("the server may have lost changes of the stage (%s); it gives a lease when that is settled" % why, gone=why == "apart", fits=True)
            return float(self.lease / 10)
        order, terms, problem = self._read(reply.row)
        said, self._misfit = self._misfit, problem
        if order is None or terms is None or problem:
            if order is not None:
                self.gate.extend(order)
            self.gate.failed(problem, gone=False, fits=False)
            return 0.0 if problem != said else float(self.lease / 10)
        if said or terms.longest > self._longest:  # the record must be right before anything is acquired
            self._longest = max(self._longest, terms.longest)
            return 0.0
        return 0.0 if self.gate.obey(order, terms, sent + self.lease) else float(self.lease / 3)

    def leave(self) -> Generator[Any, Reply, None]:
        if self._bound and self.gate.idle():
            self._seq += 1
            yield Call("stage_leave", dict(self.keys, id=self.id, seq=self._seq, not_after=int(self._bound)))

    def _unreachable(self, reply: Reply) -> float:
        error = reply.silent or reply.fault
        hopeless = any(sign in "%s %s" % (type(error).__name__, error) for sign in ("NOPERM", "NoPermission", "AuthenticationError", "can't run this command", "can't access", "OLDSERVER", "PROTOCOL", "NOAUTH", "WRONGPASS", "WRONGTYPE", "unknown command"))
        self.gate.failed("%s: %s" % (type(error).__name__, error), gone=hopeless, fits=True)
        return float(self.lease / 60)

    def _none(self) -> float:
        self.gate.failed("there is no namespace %r; correct the name, or create it with `lockmigrate stage init`" % self.namespace, gone=True, fits=True)
        return float(self.lease / 10)

    def _read(self, row: List[Any]) -> Any:
        """The order, the terms by it, and why this member cannot run it."""
        _, _, ends, epoch, stage, patterns, clients = row[:7]
        try:
            known = json.loads(clients)
            order = Order(int(epoch), int(stage), [_unescape(p) for p in json.loads(patterns)], known, int(ends))
            dialect = DIALECTS[known["dialect"]]
            if not 0 <= order.stage <= 2:
                raise ValueError("stage %d" % order.stage)
        except (KeyError, ValueError, TypeError) as error:
            return None, None, "the record of namespace %s cannot be read by this version: %r" % (self.namespace, error)
        o = self.options
        shortest = known["shortest_ms"] / 1000.0
        gap = known.get("yield_ms", 0) / 1000.0 or min(dialect.poll * 1.2, 20.0)
        terms = Terms(
            dialect=dialect, ttl=o["ttl"], shortest=shortest, lag=known.get("lag_ms", 0) / 1000.0 or 1.0, delay=known.get("delay_ms", 0) / 1000.0 or 0.25,
            gap=gap, lease=o["lease"] or max(30.0, -(-shortest // dialect.resolution()) * dialect.resolution() if dialect.resolution() >= 0.001 else shortest), fence_ttl=o["fence_ttl"])
        if o["dialect"] and o["dialect"] != known["dialect"]:
            return order, terms, "namespace %s is of dialect %s, this Locker says %s" % (self.namespace, known["dialect"], o["dialect"])
        problem = terms.problem()
        return order, terms, problem and "namespace %s: %s" % (self.namespace, problem)


def _unescape(pattern: str) -> bytes:
    """A pattern as the record has it: bytes that are no UTF-8 stand as \\xHH, in lower case."""
    out, i, raw = bytearray(), 0, pattern.encode()
    while i < len(raw):
        if raw[i:i + 2] == b"\\x" and i + 4 <= len(raw):
            byte = int(raw[i + 2:i + 4], 16)
            out += (b"\\" if byte in b"*?[]\\" else b"") + bytes([byte])
            i += 4
        elif raw[i:i + 1] == b"\\":
            out += raw[i:i + 2]
            i += 2
        else:
            out.append(raw[i])
            i += 1
    return bytes(out)


def _version() -> str:
    from . import __version__

    return __version__
