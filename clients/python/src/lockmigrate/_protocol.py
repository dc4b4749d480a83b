"""What a member writes and reads: dialects of old clients, bridge values, names of keys, times.

Nothing here knows a clock or a connection. Values are bytes, because a dialect may write any. Times are seconds; instants of the server's
clock are milliseconds since the epoch.
"""
from __future__ import annotations

import math
import secrets
import struct
import uuid
from dataclasses import dataclass
from typing import Dict, Optional

BRIDGE_LOW, BRIDGE_HIGH = 5 * 10**18, 92 * 10**17
EARLIEST_MS = 10**12  # September 2001: an earlier number is no expiry
CENTURY_MS = 32 * 10**11


@dataclass(frozen=True)
class Dialect:
    """How one family of old clients writes and reads an expiry. The table is that of the Go library."""

    name: str
    unit: str = "ms"  # ms, s, float or ns
    extra: int = 1  # units that the writer adds to now + lease
    layout: str = "plain"  # plain, uuid, dash, quoted or fst
    win: str = "read"  # who wins after GETSET: the old value is what GET returned ("read"), or is expired ("expired")
    missing: str = "retries"  # what a reader does when GET finds nothing: "retries", "expired"
    at_or_before: bool = False  # expired means value <= now
    mine_expires: bool = False  # a client takes its own value for expired
    transaction: bool = False  # takes over by WATCH and MULTI
    quotes: bool = False  # the takeover writes the value in double quotes
    unique: bool = False  # no two clients write one value
    forever: bytes = b""  # what a client writes that is given no lease
    poll: float = 0.1

    @property
    def settles_free(self) -> bool:
        return self.mine_expires and self.missing == "expired"

    @property
    def breath_ms(self) -> int:
        return 5 if self.missing == "expired" and not self.settles_free else 0

    @property
    def leftover(self) -> bytes:
        """A value that a holder deletes in its own place: a loser's that never expires."""
        return self.forever if self.name == "redispy-float" else b""

    def resolution(self) -> float:
        return {"s": 1.0, "ms": 0.001}.get(self.unit, 1e-9)

    def owner(self) -> str:
        if self.layout == "uuid":
            return str(uuid.uuid4())
        if self.layout == "dash":
            return str(uuid.uuid4())[:8] + "-lockmigrate"  # unique: a process and thread are not, beside containers and coroutines
        return ""

    def join(self, number: str, owner: str) -> bytes:
        if self.layout == "uuid":
            return ("%s:%s" % (owner, number)).encode()
        if self.layout == "dash":
            return ("%s-%s" % (number, owner)).encode()
        if self.layout == "fst":
            return b"\xf6\x82" + struct.pack("<q", int(number))
        return number.encode()

    def expiry(self, now_ms: float, lease: float, owner: str) -> bytes:
        """What a client whose clock reads now writes for a lease: never less than it, also where the unit is coarser."""
        if self.unit == "float":
            return self.join(repr(now_ms / 1000.0 + lease + self.extra), owner)
        per_second = {"ms": 1000, "s": 1, "ns": 10**9}[self.unit]
        n = int(now_ms * per_second // 1000) + math.ceil(round(lease * per_second, 3)) + self.extra
        return self.join(str(n), owner)

    def bridge_value(self) -> bytes:
        """A number that every old reader takes for an expiry that never comes, and that nobody guesses."""
        return self.join(str(BRIDGE_LOW + secrets.randbelow(BRIDGE_HIGH - BRIDGE_LOW)), self.owner())

    def read(self, value: bytes, now_ms: float) -> Optional[float]:
        """The instant that an old client's value stands for; None for what is not wholly of this dialect, which counts as held. It is as strict as
        the server's scripts are: stricter than any client."""
        number = self._number(value)
        if not number or len(number) > 32:
            return None
        head, point, tail = number.partition(".")
        if not _digits(head) or (point and (self.unit != "float" or (tail and not _digits(tail)))):
            return None
        n = float(number)
        ms = {"ms": n, "s": n * 1000, "float": n * 1000, "ns": n / 1e6}[self.unit]
        if ms < EARLIEST_MS or (ms > now_ms + CENTURY_MS and ms < BRIDGE_LOW):
            return None
        return ms

    def _number(self, value: bytes) -> str:
        if self.layout == "fst":
            return str(struct.unpack("<Q", value[2:])[0]) if len(value) == 10 and value[:2] == b"\xf6\x82" else ""
        try:
            text = value.decode("ascii")
        except UnicodeDecodeError:
            return ""
        if self.layout == "uuid":
            owner, _, number = text.partition(":")
            groups = owner.split("-")
            hexadecimal = all(g and all(c in "0123456789abcdefABCDEF" for c in g) for g in groups)
            return number if len(groups) == 5 and hexadecimal else ""
        if self.layout == "dash":
            parts = text.split("-", 2)
            return parts[0] if len(parts) == 3 and parts[1] and parts[2] else ""
        if self.layout == "quoted" and len(text) >= 2 and text[0] == text[-1] == '"':
            return text[1:-1]
        return text

    def expired(self, value: bytes, now_ms: float) -> Optional[bool]:
        """Whether an old client whose clock reads now would take the value over; None where it is not of this dialect."""
        ms = self.read(value, now_ms)
        if ms is None:
            return None
        if self.unit == "s":
            now_ms = now_ms // 1000 * 1000
        elif self.unit == "ms":
            now_ms = now_ms // 1
        return ms < now_ms or (self.at_or_before and ms == now_ms)


def _digits(text: str) -> bool:
    return text != "" and all(c in "0123456789" for c in text)


DIALECTS: Dict[str, Dialect] = {
    d.name: d
    for d in (
        Dialect("jedis-ms"),
        Dialect("jedis-uuid", layout="uuid", missing="expired", mine_expires=True, unique=True),
        Dialect("redispy-float", unit="float", extra=0, win="expired", missing="expired", forever=b"2147483649.0"),
        Dialect("redis-doc", unit="s", win="expired", at_or_before=True),
        Dialect("redis-objects", unit="float", win="expired", missing="expired", forever=b"1"),
        Dialect("sec-pid-thread", unit="s", layout="dash", missing="expired", unique=True, poll=1.0),
        Dialect("servicestack", layout="quoted", at_or_before=True, transaction=True, quotes=True),
        Dialect("unix-ns", unit="ns", extra=0, win="expired"),
        Dialect("jboot", layout="fst"),
    )
}


@dataclass(frozen=True)
class Terms:
    """What a member lives by: the record's figures and the service's TTL, in seconds."""

    dialect: Dialect
    ttl: float = 30.0
    shortest: float = 10.0
    lag: float = 1.0
    delay: float = 0.25
    gap: float = 0.0
    lease: float = 30.0
    fence_ttl: float = 0.0

    @property
    def grace(self) -> float:
        return self.lag + self.delay

    @property
    def renew(self) -> float:
        every = min(min(self.ttl, self.shortest) / 3, (self.shortest - self.delay) / 2)
        if self.dialect.settles_free:
            every = min(every, self.dialect.poll / 2)
        return max(every, 0.001)

    @property
    def claim(self) -> float:
        return max(min(3.0, self.ttl / 3, (self.shortest - self.delay) / 2), 0.001)

    @property
    def longest(self) -> float:
        """For how long a lock can outlive its last renewal, whatever stage it is of."""
        return max(self.ttl, self.lease + 2 * self.dialect.resolution())

    def problem(self) -> str:
        """Why the bridge is not safe by these figures; empty where it is."""
        if self.lease < self.shortest:
            return "lease %gs is shorter than the record's shortest lease %gs, on which the other members rely" % (self.lease, self.shortest)
        if self.renew + self.delay >= self.shortest:
            return "shortest lease %gs: too short to renew within it, every %gs, beside a command delay of %gs" % (self.shortest, self.renew, self.delay)
        if 2 * self.delay >= self.shortest or self.delay >= self.ttl:
            return "command delay %gs: must be less than half of the shortest lease %gs, and less than ttl %gs" % (self.delay, self.shortest, self.ttl)
        if self.fence_ttl and self.fence_ttl < 2 * self.ttl:
            return "fence_ttl %gs: must be at least twice ttl %gs" % (self.fence_ttl, self.ttl)
        return ""


def ms(seconds: float) -> int:
    """Whole milliseconds, rounded up: less of a grace would take a live value for expired."""
    return int(-(-round(seconds * 1e6) // 1000))


def hash_tag(key: bytes) -> bytes:
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[start + 1:end] if end > start + 1 else key


def slot(key: bytes) -> int:
    """The cluster slot of a key: CRC-16 (XMODEM) of its hash tag, modulo 16,384."""
    crc = 0
    for b in hash_tag(key):
        crc ^= b << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % 16384


def beside(key: bytes, suffix: bytes) -> bytes:
    """The name of a key that accompanies another and lies in its cluster slot: `{orders}:guard`, `{7}orders:guard:`, `{n}a}b:guard::`."""
    if hash_tag(key) != key:
        return key + suffix + b":"
    if key and b"}" not in key:
        return b"{" + key + b"}" + suffix
    wanted, n = slot(key), 0
    while slot(b"%d" % n) != wanted:
        n += 1
    return b"{%d}" % n + key + suffix + b"::"


def matches(pattern: bytes, key: bytes) -> bool:
    """Whether the key is one of a namespace's pattern: `*`, `?`, and a backslash before what is meant literally."""
    elements, i = [], 0
    while i < len(pattern):
        c = pattern[i:i + 1]
        if c == b"\\" and i + 1 < len(pattern):
            i += 1
            c = b"=" + pattern[i:i + 1]
        elif c not in (b"*", b"?"):
            c = b"=" + c
        elements.append(c)
        i += 1
    reached = {0}
    for j in range(len(key) + 1):
        stack = list(reached)
        while stack:  # a * may stand for nothing
            at = stack.pop()
            if at < len(elements) and elements[at] == b"*" and at + 1 not in reached:
                reached.add(at + 1)
                stack.append(at + 1)
        if j == len(key):
            break
        byte, following = key[j:j + 1], set()
        for at in reached:
            if at < len(elements):
                if elements[at] == b"*":
                    following.add(at)
                elif elements[at] == b"?" or elements[at] == b"=" + byte:
                    following.add(at + 1)
        reached = following
    return len(elements) in reached
