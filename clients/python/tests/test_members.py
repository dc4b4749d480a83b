"""Runs against REDIS_URL, an empty server; LOCKMIGRATE is the command line. The Go suite internal/evidence/suites/clients starts both."""
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "src"))

import redis  # noqa: E402

import lockmigrate  # noqa: E402
from lockmigrate._machines import Held, Reply, legacy_acquire  # noqa: E402
from lockmigrate._protocol import DIALECTS, Terms, beside, matches  # noqa: E402

assert "lockmigrate.aio" not in sys.modules, "the package does not need redis.asyncio"
try:
    import redis.asyncio
    from lockmigrate import aio
except ImportError:  # redis-py before 4.2
    aio = None

URL = os.environ["REDIS_URL"]


def operator(*args):
    done = subprocess.run([os.environ["LOCKMIGRATE"], *args], env=dict(os.environ, LOCKMIGRATE_REDIS=URL), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


def namespace(name, *more):
    operator("stage", "init", "--namespace", name, "--match", name + ".*", "--dialect", "jedis-ms", "--shortest-lease", "10s", "--execute", *more)


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


class Referee:
    """Counts who is inside, on a key that no lock knows."""

    def __init__(self, client, key):
        self.client, self.key, self.overlaps, self.turns = client, "referee:" + key, 0, 0

    def enter(self):
        self.turns += 1
        if self.client.incr(self.key) > 1:
            self.overlaps += 1

    def leave(self):
        self.client.decr(self.key)


class Members(unittest.TestCase):
    def setUp(self):
        self.client = redis.Redis.from_url(URL, socket_timeout=5)

    def tearDown(self):
        self.client.connection_pool.disconnect()

    @unittest.skipUnless(aio, "no redis.asyncio")
    def test_stages_forth_and_back(self):
        """Threads and asyncio take turns on one key while the stages move to modern and back; nobody is inside beside another."""
        namespace("orders")
        referee, stop = Referee(self.client, "orders"), threading.Event()

        def threads(locker):
            while not stop.is_set():
                try:
                    with locker.hold("orders.1", wait=20):
                        referee.enter()
                        time.sleep(0.002)
                        referee.leave()
                except lockmigrate.LockLost:
                    pass

        async def coroutines():
            client = redis.asyncio.Redis.from_url(URL, socket_timeout=5)
            async with aio.Locker(client, "orders", ttl=6, member="aio") as locker:
                async def work():
                    while not stop.is_set():
                        async with locker.hold("orders.1", wait=20):
                            referee.enter()
                            await asyncio.sleep(0.002)
                            referee.leave()

                await locker.ready(10)
                await asyncio.gather(work(), work())
            await (client.aclose() if hasattr(client, "aclose") else client.close())

        with lockmigrate.Locker(self.client, "orders", ttl=6, member="a") as a, lockmigrate.Locker(self.client, "orders", ttl=6, member="b") as b:
            a.ready(10)
            b.ready(10)
            self.addCleanup(stop.set)
            workers = [threading.Thread(target=threads, args=(one,), daemon=True) for one in (a, a, b)] + [threading.Thread(target=lambda: asyncio.run(coroutines()), daemon=True)]
            for worker in workers:
                worker.start()
            seen = []
            for verb, to in (("advance", "bridge"), ("advance", "modern"), ("rollback", "bridge"), ("rollback", "legacy"), ("advance", "bridge")):
                before = referee.turns
                until(lambda: referee.turns >= before + 20)
                force = ["--force", "a test"] if to == "modern" else []
                operator("stage", verb, "--namespace", "orders", "--to", to, "--wait", "--execute", *force)
                seen.append(a.stage)
            listed = json.loads(operator("stage", "--namespace", "orders", "--json"))
            self.assertEqual(3, len(listed["members"]))
            stop.set()
            for worker in workers:
                worker.join(60)
            self.assertFalse(any(worker.is_alive() for worker in workers))
        self.assertEqual(["bridge", "modern", "bridge", "legacy", "bridge"], seen)
        self.assertEqual(0, referee.overlaps, "EXCLUSION VIOLATED")
        self.assertGreater(referee.turns, 100)
        self.assertIn("no members", operator("stage", "--namespace", "orders"))

    def test_a_loss_is_told(self):
        for lost_by, reason in ((lambda: self.client.set("k", "6123456789012345678", px=60000), "displaced"),
                                (lambda: self.client.delete("k", "{k}:guard"), "taken")):
            with lockmigrate.Locker(self.client, ttl=1.5) as locker:
                lock, told = locker.acquire("k", wait=5), threading.Event()
                lock.on_lost(lambda error: told.set())
                lost_by()
                self.assertTrue(told.wait(10))
                with self.assertRaises(lockmigrate.LockLost) as raised:
                    lock.check()
                self.assertEqual(reason, raised.exception.reason)
                with self.assertRaises(lockmigrate.LockLost):
                    lock.release()
            self.client.flushall()

    def test_a_closed_holder_is_counted(self):
        """What a closed Locker held stays on the server: it says no goodbye, and an on_lost that raises is its caller's matter."""
        namespace("left")
        locker, told = lockmigrate.Locker(self.client, "left", ttl=3), []
        locker.ready(10)
        lock = locker.acquire("left.1", wait=10)
        lock.on_lost(lambda error: told.append(error.reason) or 1 / 0)
        with self.assertLogs("lockmigrate", "ERROR"):
            locker.close()
        self.assertEqual(["closed"], told)
        self.assertEqual(1, len(json.loads(operator("stage", "--namespace", "left", "--json"))["members"]))
        self.assertTrue(self.client.exists("left.1"))
        with self.assertRaises(lockmigrate.LockLost):
            lock.release()
        self.assertFalse(self.client.exists("left.1"))

    def test_a_server_that_falls_silent(self):
        client = redis.Redis.from_url(URL, socket_timeout=0.3)
        with lockmigrate.Locker(client, ttl=1.5) as locker:
            lock, told = locker.acquire("silent", wait=5), threading.Event()
            lock.on_lost(lambda error: told.set())
            self.client.execute_command("CLIENT", "PAUSE", 4000)
            self.assertTrue(told.wait(4), "the holder is told by its own clock")
            self.assertFalse(lock.alive())

    @unittest.skipUnless(aio, "no redis.asyncio")
    def test_close_ends_who_waits(self):
        """A cancellation that comes together with a wake is not swallowed, and no waiter goes on behind a closed Locker."""
        with lockmigrate.Locker(self.client, ttl=5) as holder, holder.hold("closed", wait=5):
            locker, told = lockmigrate.Locker(self.client, ttl=5), []

            def wait():
                try:
                    locker.acquire("closed", wait=60)
                except lockmigrate.StageError as error:
                    told.append(str(error))

            waiter = threading.Thread(target=wait, daemon=True)
            waiter.start()
            until(lambda: self.client.zcard("{closed}:queue"))
            locker.close()
            waiter.join(30)
            self.assertEqual(["the Locker is closed"], told)
            until(lambda: not self.client.zcard("{closed}:queue"))

            async def run():
                client = redis.asyncio.Redis.from_url(URL, socket_timeout=5)
                async with aio.Locker(client, ttl=5) as locker:
                    waiter = asyncio.ensure_future(locker.acquire("closed"))
                    while not await client.zcard("{closed}:queue"):
                        await asyncio.sleep(0.01)
                with self.assertRaisesRegex(lockmigrate.StageError, "closed"):
                    await waiter
                await (client.aclose() if hasattr(client, "aclose") else client.close())

            asyncio.run(asyncio.wait_for(run(), 60))

    def test_a_waiter_at_legacy_beside_a_guard(self):
        """A stale DEL has removed a bridge holder's key: its guard holds off a member at stage legacy, which waits."""
        namespace("guarded")
        with lockmigrate.Locker(self.client, "guarded", ttl=3) as locker:
            locker.ready(10)
            self.client.set("{guarded.1}:guard", "5123456789012345678", px=500)
            with locker.hold("guarded.1", wait=20) as lock:
                self.assertEqual("legacy", lock.stage)

    def test_what_is_refused(self):
        namespace("shop")
        with lockmigrate.Locker(self.client, "nowhere") as locker:
            with self.assertRaisesRegex(lockmigrate.StageError, "there is no namespace"):
                locker.ready(5)
        with lockmigrate.Locker(self.client, "shop", dialect="redis-doc") as locker:
            with self.assertRaisesRegex(lockmigrate.StageError, "of dialect jedis-ms"):
                locker.ready(5)
        with lockmigrate.Locker(self.client, "shop", lease=2) as locker:
            with self.assertRaisesRegex(lockmigrate.StageError, "shorter than the record's shortest lease"):
                locker.ready(5)
        with lockmigrate.Locker(self.client, "shop") as locker:
            locker.ready(10)
            with self.assertRaisesRegex(lockmigrate.StageError, "not of the namespace"):
                locker.try_acquire("other")
            self.client.set("shop.1", "text")
            with self.assertRaises(lockmigrate.ForeignFormat):
                locker.try_acquire("shop.1")
        for wrong in ({"ttl": 0}, {"dialect": "x"}, {"stage": "legacy"}, {"fence_ttl": 1.0}):
            with self.assertRaises(ValueError):
                lockmigrate.Locker(self.client, **wrong)

    def test_fences_grow(self):
        with lockmigrate.Locker(self.client, ttl=3, fence_ttl=60) as locker:
            last = 0
            for _ in range(3):
                with locker.hold("fenced", wait=5) as lock:
                    self.assertGreater(lock.fence, last)
                    last = lock.fence

    @unittest.skipUnless(aio, "no redis.asyncio")
    def test_a_cancelled_wait_leaves_nothing(self):
        async def run():
            client = redis.asyncio.Redis.from_url(URL, socket_timeout=5)
            async with aio.Locker(client, ttl=5) as locker:
                lock = await locker.acquire("cancelled")
                waiter = asyncio.create_task(locker.acquire("cancelled"))
                while not await client.zcard("{cancelled}:queue"):
                    await asyncio.sleep(0.01)
                waiter.cancel()
                while await client.zcard("{cancelled}:queue"):
                    await asyncio.sleep(0.01)
                with self.assertRaises(asyncio.CancelledError):
                    await waiter
                await lock.release()
                self.assertEqual(0, await client.exists("cancelled"))
            await (client.aclose() if hasattr(client, "aclose") else client.close())

        asyncio.run(asyncio.wait_for(run(), 60))


class Legacy(unittest.TestCase):
    """The machine of stage legacy, without a server."""

    def run_machine(self, dialect, *replies):
        h = Held(key=b"k", terms=Terms(dialect=DIALECTS[dialect]), stage=0, value=b"", names={"guard": b"{k}:guard"})
        machine = legacy_acquire(h, lambda: 0.0, lambda: 1.7e12, lambda: 7, 0.0)
        request, asked = next(machine), []
        try:
            for reply in replies:
                asked.append(request)
                request = machine.send(reply(h) if callable(reply) else reply)
        except StopIteration as end:
            return h, asked, end.value.verdict
        self.fail("goes on: %r" % (request,))

    def test_lost_replies(self):
        lost, nil = Reply(silent=OSError()), Reply(None)
        ours = lambda h: Reply(h.value)  # noqa: E731
        h, asked, verdict = self.run_machine("jedis-ms", lost, nil, Reply(1))
        self.assertEqual("acquired", verdict)
        self.assertEqual(asked[0], asked[2], "the same value again: the lost SETNX may arrive yet")
        self.assertEqual(7, asked[0].values["not_after"])
        for dialect, want in (("jedis-ms", "unsure"), ("jedis-uuid", "acquired"), ("sec-pid-thread", "acquired")):
            h, _, verdict = self.run_machine(dialect, lost, ours)
            self.assertEqual(want, verdict, dialect)
            self.assertTrue(h.doubt)
        _, _, verdict = self.run_machine("jedis-ms", lost, lost)
        self.assertEqual("unsure", verdict)
        h, _, verdict = self.run_machine("jedis-ms", lost, Reply(b"1700000060000"))
        self.assertEqual(("busy", False), (verdict, h.doubt), "another holds it")
        old = Reply(b"1600000000000")
        h, _, verdict = self.run_machine("jedis-ms", Reply(0), old, lost, ours)
        self.assertEqual(("unsure", True), (verdict, h.doubt))
        h, _, verdict = self.run_machine("jedis-ms", Reply(0), old, Reply(b"1700000060000"))
        self.assertEqual(("busy", False), (verdict, h.doubt), "what a loser wrote is not ours to delete")


class Bytes(unittest.TestCase):
    def test_values_are_those_of_the_dialects(self):
        """The Go tools take each value for one of its dialect, held until the time that it stands for."""
        client = redis.Redis.from_url(URL)
        now = time.time() * 1000
        for name, dialect in DIALECTS.items():
            value = dialect.expiry(now, 60, dialect.owner())
            client.set("value." + name, value)
            self.assertFalse(dialect.expired(dialect.expiry(1.7e12 + 900, 10.4, dialect.owner()), 1.7e12 + 900 + 10399), name + ": over before the lease")
            self.assertFalse(dialect.expired(value, now))
            self.assertTrue(dialect.expired(value, now + 63000))
            self.assertFalse(dialect.expired(dialect.bridge_value(), now) is True)
        rows = [json.loads(line) for line in operator("scan", "--match", "value.*", "--json").splitlines()]
        formats = {row["key"]: (row["format"], row["state"]) for row in rows if "key" in row}
        self.assertEqual(len(DIALECTS), len(formats))
        for key, (form, state) in formats.items():
            self.assertEqual("held", state, (key, form))
        client.connection_pool.disconnect()

    def test_names_and_patterns(self):
        for key, guard in ((b"orders", b"{orders}:guard"), (b"{7}orders", b"{7}orders:guard:"), (b"{orders}", b"{orders}:guard:"), (b"a}b", None)):
            if guard is not None:
                self.assertEqual(guard, beside(key, b":guard"))
        self.assertTrue(beside(b"a}b", b":guard").endswith(b"}a}b:guard::"))
        for pattern, key, want in ((b"lock.*", b"lock.a", True), (b"lock.?", b"lock.ab", False), (b"*x*", b"axb", True), (rb"a\*b", b"a*b", True), (rb"a\*b", b"axb", False), (b"*", b"", True)):
            self.assertEqual(want, matches(pattern, key), (pattern, key))


if __name__ == "__main__":
    unittest.main()
