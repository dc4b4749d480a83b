package io.github.lockmigrate;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import io.github.lockmigrate.jedis.JedisServer;
import io.github.lockmigrate.lettuce.LettuceServer;
import io.lettuce.core.RedisURI;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Lock;
import java.util.function.BooleanSupplier;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.junit.runners.Parameterized;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;

/** Runs against REDIS_URL, an empty server; LOCKMIGRATE is the command line. The Go suite internal/evidence/suites/clients starts both. */
@RunWith(Parameterized.class)
public class MembersTest {
    private static final String URL = System.getenv("REDIS_URL");
    private static final Duration TEN = Duration.ofSeconds(10);    // what comes to nothing
    private static final Duration MINUTE = Duration.ofSeconds(60); // what has to come, on a busy machine too

    @Parameterized.Parameters(name = "{0}")
    public static Iterable<String> clients() {
        return Arrays.asList(System.getProperty("clients", "jedis,lettuce").split(","));
    }

    @Parameterized.Parameter public String kind;

    private final List<AutoCloseable> open = new ArrayList<>();
    private Jedis direct;
    private RedisServer server;

    @Before
    public void connect() {
        direct = new Jedis(URI.create(URL));
        open.add(direct);
        ask("FLUSHALL");
        server = server(kind, 5000);
    }

    @After
    public void close() throws Exception {
        Collections.reverse(open);
        for (AutoCloseable one : open) {
            one.close();
        }
    }

    private RedisServer server(String kind, int timeoutMs) {
        if (kind.equals("jedis")) {
            JedisPool pool = new JedisPool(URI.create(URL), timeoutMs);
            open.add(pool::close);
            return JedisServer.of(pool::getResource);
        }
        RedisURI uri = RedisURI.create(URL);
        uri.setTimeout(Duration.ofMillis(timeoutMs));
        LettuceServer lettuce = LettuceServer.of(uri);
        open.add(lettuce);
        return lettuce;
    }

    /** By the one method that all versions of Jedis have in the same form. */
    private Object ask(String... words) {
        byte[][] args = Arrays.stream(words).skip(1).map(Raw::bytes).toArray(byte[][]::new);
        Object reply = direct.sendCommand(() -> Raw.bytes(words[0]), args);
        return reply instanceof byte[] ? Raw.of((byte[]) reply) : reply;
    }

    private static String operator(String... args) throws Exception {
        List<String> command = new ArrayList<>(Arrays.asList(args));
        command.add(0, System.getenv("LOCKMIGRATE"));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("LOCKMIGRATE_REDIS", URL);
        Process process = builder.start();
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        InputStream in = process.getInputStream();
        for (int b = in.read(); b >= 0; b = in.read()) {
            out.write(b);
        }
        assertEquals(command + "\n" + out, 0, process.waitFor());
        return out.toString("UTF-8");
    }

    private static void namespace(String name, String... more) throws Exception {
        List<String> args = new ArrayList<>(Arrays.asList("stage", "init", "--namespace", name, "--match", name + ".*", "--dialect", "jedis-ms", "--shortest-lease", "10s", "--execute"));
        args.addAll(Arrays.asList(more));
        operator(args.toArray(new String[0]));
    }

    private static List<?> members(String namespace) throws Exception {
        return (List<?>) ((Map<?, ?>) Json.parse(operator("stage", "--namespace", namespace, "--json"))).get("members");
    }

    private static void until(BooleanSupplier condition) throws InterruptedException {
        long end = System.nanoTime() + 60 * Terms.SECOND;
        while (!condition.getAsBoolean()) {
            assertTrue("it did not come to that", System.nanoTime() < end);
            Thread.sleep(10);
        }
    }

    private Locker.Builder locker() {
        return Locker.on(server).ttl(Duration.ofSeconds(3));
    }

    /** Threads of three Lockers on both clients take turns on one key while the stages move to modern and back; nobody is inside beside another. */
    @Test
    public void stagesForthAndBack() throws Exception {
        namespace("orders");
        AtomicBoolean stop = new AtomicBoolean();
        AtomicInteger turns = new AtomicInteger(), overlaps = new AtomicInteger(), inside = new AtomicInteger(), lost = new AtomicInteger();
        List<Throwable> thrown = Collections.synchronizedList(new ArrayList<>());
        List<Thread> workers = new ArrayList<>();
        List<Locker> lockers = new ArrayList<>();
        for (String client : new String[] {kind, kind, kind.equals("jedis") ? "lettuce" : "jedis"}) {
            Locker locker = Locker.on(server(client, 5000)).namespace("orders").ttl(Duration.ofSeconds(30)).member(client + lockers.size()).build();
            open.add(locker);
            lockers.add(locker);
            locker.ready(MINUTE);
            for (int i = 0; i < 2; i++) {
                Thread worker = new Thread(() -> {
                    while (!stop.get()) {
                        try (HeldLock lock = locker.acquire("orders.1", Duration.ofSeconds(60))) {
                            turns.incrementAndGet();
                            overlaps.addAndGet(inside.incrementAndGet() > 1 ? 1 : 0);
                            Thread.sleep(2);
                            inside.decrementAndGet();
                        } catch (LockLostException e) {
                            lost.incrementAndGet();
                        } catch (Throwable e) {
                            thrown.add(e);
                        }
                    }
                });
                worker.start();
                workers.add(worker);
            }
        }
        try {
            List<String> seen = new ArrayList<>();
            for (String step : new String[] {"advance bridge", "advance modern", "rollback bridge", "rollback legacy", "advance bridge"}) {
                int before = turns.get();
                until(() -> turns.get() >= before + 20);
                String[] words = step.split(" ");
                List<String> args = new ArrayList<>(Arrays.asList("stage", words[0], "--namespace", "orders", "--to", words[1], "--wait", "--execute"));
                if (words[1].equals("modern")) {
                    args.addAll(Arrays.asList("--force", "a test"));
                }
                operator(args.toArray(new String[0]));
                seen.add(lockers.get(0).stage().map(Stage::toString).orElse(""));
            }
            assertEquals(Arrays.asList("bridge", "modern", "bridge", "legacy", "bridge"), seen);
            assertEquals(3, members("orders").size());
        } finally {
            stop.set(true);
        }
        for (Thread worker : workers) {
            worker.join(60_000);
            assertFalse(worker.isAlive());
        }
        lockers.forEach(Locker::close);
        assertEquals("EXCLUSION VIOLATED", 0, overlaps.get());
        assertEquals(Collections.emptyList(), thrown);
        assertEquals(0, lost.get());
        assertTrue(turns.get() > 100);
        assertTrue(operator("stage", "--namespace", "orders").contains("no members"));
    }

    @Test
    public void aLossIsTold() throws Exception {
        for (boolean displaced : new boolean[] {true, false}) {
            try (Locker locker = locker().build()) {
                HeldLock lock = locker.acquire("k", MINUTE);
                BlockingQueue<LockLostException> told = new LinkedBlockingQueue<>();
                lock.onLost(told::add);
                if (displaced) {
                    ask("PSETEX", "k", "60000", "6123456789012345678");
                } else {
                    ask("DEL", "k", "{k}:guard");
                }
                LockLostException loss = told.poll(10, TimeUnit.SECONDS);
                assertNotNull("nobody was told", loss);
                assertEquals(displaced ? LockLostException.Reason.DISPLACED : LockLostException.Reason.TAKEN, loss.reason());
                assertEquals(loss, assertThrows(LockLostException.class, lock::check));
                assertThrows(LockLostException.class, lock::close);
            }
            ask("FLUSHALL");
        }
    }

    /** What a closed Locker held stays on the server: it says no goodbye, and an onLost that throws is its caller's matter. */
    @Test
    public void aClosedHolderIsCounted() throws Exception {
        namespace("left");
        Locker locker = locker().namespace("left").build();
        locker.ready(MINUTE);
        HeldLock lock = locker.acquire("left.1", MINUTE);
        CountDownLatch told = new CountDownLatch(1);
        lock.onLost(e -> {
            told.countDown();
            throw new IllegalStateException(e);
        });
        locker.close();
        assertTrue(told.await(10, TimeUnit.SECONDS));
        assertEquals(1, members("left").size());
        assertTrue(ask("GET", "left.1") != null);
        assertEquals(LockLostException.Reason.CLOSED, assertThrows(LockLostException.class, lock::close).reason());
        assertEquals(null, ask("GET", "left.1"));
    }

    @Test
    public void aServerThatFallsSilent() throws Exception {
        try (Locker locker = Locker.on(server(kind, 1000)).ttl(Duration.ofSeconds(3)).build()) {
            HeldLock lock = locker.acquire("silent", MINUTE);
            BlockingQueue<LockLostException> told = new LinkedBlockingQueue<>();
            lock.onLost(told::add);
            ask("CLIENT", "PAUSE", "60000", "WRITE");
            LockLostException loss = told.poll(30, TimeUnit.SECONDS);
            assertNotNull("the holder is told by its own clock", loss);
            assertEquals(LockLostException.Reason.DEADLINE, loss.reason());
            assertFalse(lock.alive());
        } finally {
            ask("CLIENT", "UNPAUSE");
        }
    }

    /** No waiter goes on behind a closed Locker, and an interrupt ends a wait; neither leaves anything in the queue. */
    @Test
    public void theEndOfAWait() throws Exception {
        try (Locker holder = locker().build(); HeldLock lock = holder.acquire("waited", MINUTE)) {
            for (boolean closes : new boolean[] {true, false}) {
                Locker locker = locker().build();
                BlockingQueue<Exception> told = new LinkedBlockingQueue<>();
                Thread waiter = new Thread(() -> {
                    try {
                        locker.acquire("waited");
                    } catch (Exception e) {
                        told.add(e);
                    }
                });
                waiter.start();
                until(() -> !ask("ZCARD", "{waited}:queue").equals(0L));
                if (closes) {
                    locker.close();
                } else {
                    waiter.interrupt();
                }
                assertEquals(closes ? StageException.class : InterruptedException.class, told.poll(30, TimeUnit.SECONDS).getClass());
                until(() -> ask("ZCARD", "{waited}:queue").equals(0L));
                locker.close();
            }
        }
        assertEquals(null, ask("GET", "waited"));
    }

    /** A release hands the key to who waits, by a message: the waiter does not wait for its next look, which is 5 s away. */
    @Test
    public void aWaiterIsWoken() throws Exception {
        try (Locker a = locker().ttl(Duration.ofSeconds(60)).build(); Locker b = locker().ttl(Duration.ofSeconds(60)).build()) {
            b.acquire("warm", MINUTE).close();
            HeldLock first = a.acquire("handed", MINUTE), other = null;
            BlockingQueue<HeldLock> second = new LinkedBlockingQueue<>();
            List<Thread> waiters = new ArrayList<>();
            for (int i = 0; i < 2; i++) { // the first in line may poll, the second does not
                Thread waiter = new Thread(() -> {
                    try {
                        second.add(b.acquire("handed", Duration.ofSeconds(60)));
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                });
                waiter.start();
                waiters.add(waiter);
            }
            until(() -> ((List<?>) ask("ZRANGE", "{handed}:queue", "0", "-1")).stream().filter(e -> Raw.of((byte[]) e).contains("lockmigrate:wake:")).count() == 2); // both hear
            Thread.sleep(300);
            long asked = commands("evalsha");
            first.close();
            other = second.poll(30, TimeUnit.SECONDS);
            other.close();
            second.poll(30, TimeUnit.SECONDS).close();
            assertTrue("nobody polls: " + (commands("evalsha") - asked), commands("evalsha") - asked <= 12);
            for (Thread waiter : waiters) {
                waiter.join();
            }
        }
    }

    private long commands(String name) {
        for (String line : ask("INFO", "commandstats").toString().split("\r\n")) {
            if (line.startsWith("cmdstat_" + name + ":")) {
                return Long.parseLong(line.split("[=,]")[1]);
            }
        }
        return 0;
    }

    /** A stale DEL has removed a bridge holder's key: its guard holds off a member at stage legacy, which waits. */
    @Test
    public void aWaiterAtLegacyBesideAGuard() throws Exception {
        namespace("guarded");
        try (Locker locker = locker().namespace("guarded").build()) {
            locker.ready(MINUTE);
            ask("PSETEX", "{guarded.1}:guard", "500", "5123456789012345678");
            try (HeldLock lock = locker.acquire("guarded.1", Duration.ofSeconds(20))) {
                assertEquals(Stage.LEGACY, lock.stage());
            }
        }
    }

    /** Stage legacy takes over as the old clients of each dialect do: by GETSET, or by WATCH and MULTI. */
    @Test
    public void takeoversAtLegacy() throws Exception {
        for (String dialect : new String[] {"jedis-ms", "servicestack"}) {
            operator("stage", "init", "--namespace", dialect, "--match", dialect + ".*", "--dialect", dialect, "--shortest-lease", "10s", "--execute");
            ask("SET", dialect + ".1", "1700000000000");
            try (Locker locker = locker().namespace(dialect).build()) {
                locker.ready(MINUTE);
                HeldLock lock = locker.tryAcquire(dialect + ".1");
                assertEquals(dialect.equals("servicestack"), ask("GET", dialect + ".1").toString().startsWith("\""));
                assertThrows(NotAcquiredException.class, () -> locker.tryAcquire(dialect + ".1"));
                Object before = ask("GET", dialect + ".1");
                Thread.sleep(2);
                lock.renew();
                assertFalse(before.equals(ask("GET", dialect + ".1")));
                lock.close();
                assertEquals(null, ask("GET", dialect + ".1"));
            }
        }
    }

    @Test
    public void whatIsRefused() throws Exception {
        namespace("shop");
        try (Locker locker = locker().namespace("nowhere").build()) {
            says("there is no namespace", assertThrows(StageException.class, () -> locker.ready(TEN)));
        }
        try (Locker locker = locker().namespace("shop").dialect("redis-doc").build()) {
            says("of dialect jedis-ms", assertThrows(StageException.class, () -> locker.ready(TEN)));
        }
        try (Locker locker = locker().namespace("shop").lease(Duration.ofSeconds(2)).build()) {
            says("shorter than the record's shortest lease", assertThrows(StageException.class, () -> locker.ready(TEN)));
            assertEquals("a member that cannot run the record is listed", 1, members("shop").size());
        }
        try (Locker locker = locker().namespace("shop").build()) {
            locker.ready(MINUTE);
            says("not of the namespace", assertThrows(StageException.class, () -> locker.tryAcquire("other")));
            ask("SET", "shop.1", "text");
            assertEquals("text", new String(assertThrows(ForeignFormatException.class, () -> locker.tryAcquire("shop.1")).value()));
        }
        for (Locker.Builder wrong : Arrays.asList(locker().ttl(Duration.ZERO), locker().dialect("x"), locker().stage(Stage.LEGACY), locker().fenceTtl(Duration.ofSeconds(1)),
                locker().namespace("shop").stage(Stage.BRIDGE))) {
            assertThrows(IllegalArgumentException.class, wrong::build);
        }
    }

    private static void says(String word, Throwable e) {
        assertTrue(e.getMessage(), e.getMessage().contains(word));
    }

    @Test
    public void fencesGrow() throws Exception {
        try (Locker locker = locker().fenceTtl(Duration.ofMinutes(1)).build()) {
            long last = 0;
            for (int i = 0; i < 3; i++) {
                try (HeldLock lock = locker.acquire("fenced", MINUTE)) {
                    assertTrue(lock.fence() > last);
                    last = lock.fence();
                }
            }
        }
    }

    @Test
    public void theViewAsALock() throws Exception {
        try (Locker locker = locker().build()) {
            Lock lock = locker.lock("viewed"), other = locker.lock("viewed");
            lock.lock();
            assertThrows(IllegalMonitorStateException.class, lock::lock);
            assertFalse(other.tryLock());
            assertFalse(other.tryLock(20, TimeUnit.MILLISECONDS));
            assertThrows(IllegalMonitorStateException.class, other::unlock);
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, other::lockInterruptibly);
            ask("DEL", "viewed", "{viewed}:guard");
            assertThrows(LockLostException.class, lock::unlock);
            assertTrue(other.tryLock());
            other.unlock();
            assertThrows(UnsupportedOperationException.class, lock::newCondition);
        }
    }

    /** The Go tools take each value for one of its dialect, held until the time that it stands for. */
    @Test
    public void valuesAreThoseOfTheDialects() throws Exception {
        long now = System.currentTimeMillis() * 1000;
        for (Dialect d : Dialect.ALL.values()) {
            String value = d.expiry(now, 60 * Terms.SECOND, d.owner());
            direct.sendCommand(() -> Raw.bytes("SET"), Raw.bytes("value." + d.name), Raw.bytes(value));
            assertEquals(d.name, false, d.expired(value, now));
            assertEquals(d.name, true, d.expired(value, now + 63_000_000));
            assertFalse(d.name, Boolean.TRUE.equals(d.expired(d.bridgeValue(), now)));
            assertEquals(d.name, null, d.expired("text", now));
            long late = 1_700_000_000_900_000L; // in a second
            assertEquals(d.name + ": over before the lease", false, d.expired(d.expiry(late, 10_400 * Terms.MS, d.owner()), late + 10_399_000));
        }
        int held = 0;
        for (String line : operator("scan", "--match", "value.*", "--json").split("\n")) {
            Map<?, ?> row = (Map<?, ?>) Json.parse(line);
            if (row.containsKey("key")) {
                assertEquals(line, "held", row.get("state"));
                held++;
            }
        }
        assertEquals(Dialect.ALL.size(), held);
    }
}
