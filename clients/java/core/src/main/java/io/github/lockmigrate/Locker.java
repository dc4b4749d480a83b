package io.github.lockmigrate;

import static io.github.lockmigrate.Machines.Verdict;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Locks on keys that a fleet shares. It is safe for threads; a service needs one.
 *
 * <p>With a namespace it is a member: it reports three times in each 15 s, runs the stage that the namespace's record names, and acquires nothing when no report has
 * come through for that long. {@code lockmigrate stage} lists it, and a step of the stage waits for it. A lock is renewed while it is held.
 */
public final class Locker implements AutoCloseable {
    private static final Logger LOG = Logger.getLogger("lockmigrate");
    private static final long FOREVER = Long.MAX_VALUE / 4;
    private static final long LOOK = Terms.SECOND / 4;

    private final RedisServer server;
    private final Gate gate = new Gate(this::wake);
    private final Machines machines;
    private final Member member; // null without a namespace
    private final String channel = "lockmigrate:wake:" + Dialect.random();
    private final ExecutorService behind = Executors.newCachedThreadPool(work -> thread("behind", work));
    private final List<HeldLock> held = new CopyOnWriteArrayList<>();
    private final Map<String, Integer> waiting = new HashMap<>(); // how many wait for a key here
    private final Map<String, Mailbox> mailboxes = new ConcurrentHashMap<>(); // of attempts, by what they would write
    private final Set<Mailbox> others = ConcurrentHashMap.newKeySet(); // of those who wait for the gate
    private final Mailbox renewals = new Mailbox(), reports = new Mailbox(), ear = new Mailbox();
    private final Map<String, Thread> threads = new HashMap<>();
    private volatile boolean closed, hears;
    private volatile long heard;

    private Locker(Builder b) {
        server = b.server;
        Wire wire = new Wire(server);
        if (b.namespace.isEmpty()) {
            Terms terms = new Terms(Dialect.ALL.get(b.dialect.isEmpty() ? "jedis-ms" : b.dialect), b.ttl, b.fenceTtl);
            if (!terms.problem().isEmpty()) {
                throw new IllegalArgumentException(terms.problem());
            }
            gate.fix(b.stage == null ? Stage.BRIDGE : b.stage, terms);
            member = null;
            machines = new Machines(wire, () -> System.currentTimeMillis() * 1000);
            return;
        }
        member = new Member(b.namespace, b.member, b.dialect, b.ttl, b.lease, b.fenceTtl, server.client(), gate, wire);
        machines = new Machines(wire, member::serverMicros);
        start("reports", this::report);
    }

    /** Begins a Locker on a server: see {@code JedisServer} and {@code LettuceServer}. */
    public static Builder on(RedisServer server) {
        return new Builder(server);
    }

    /** The options of a Locker. */
    public static final class Builder {
        private final RedisServer server;
        private String namespace = "", dialect = "", member = "";
        private Stage stage;
        private long ttl = 30 * Terms.SECOND, lease, fenceTtl;

        private Builder(RedisServer server) {
            this.server = server;
        }

        /** The record that is followed: {@code lockmigrate stage init} makes it. */
        public Builder namespace(String name) {
            namespace = name;
            return this;
        }

        /** Without a namespace: {@link Stage#BRIDGE}, the default, beside old clients, or {@link Stage#MODERN} where there are none. */
        public Builder stage(Stage fixed) {
            stage = fixed;
            return this;
        }

        /** Of the old clients; with a namespace it must be the record's. The default is the record's, or {@code jedis-ms}. */
        public Builder dialect(String name) {
            dialect = name;
            return this;
        }

        /** How long others wait for the lock of a holder that died; 30 s. */
        public Builder ttl(Duration duration) {
            ttl = duration.toNanos();
            return this;
        }

        /** Of a lock at stage legacy; 30 s, or the record's shortest lease where that is longer. */
        public Builder lease(Duration duration) {
            lease = duration.toNanos();
            return this;
        }

        /** How long a key's fencing counter outlives its last use, at least twice the TTL. Without it there are no fencing tokens. */
        public Builder fenceTtl(Duration duration) {
            fenceTtl = duration.toNanos();
            return this;
        }

        /** What this process is called in {@code lockmigrate stage}; the default is its host and process. */
        public Builder member(String name) {
            member = name;
            return this;
        }

        /**
         * Makes it. A member joins its namespace behind this call: see {@link Locker#ready}.
         *
         * @throws IllegalArgumentException the options do not fit each other
         */
        public Locker build() {
            if (ttl < 10 * Terms.MS || lease < 0 || fenceTtl < 0) {
                throw new IllegalArgumentException("ttl must be at least 10 ms, lease and fenceTtl not negative");
            }
            if (!dialect.isEmpty() && !Dialect.ALL.containsKey(dialect)) {
                throw new IllegalArgumentException("no dialect is named \"" + dialect + "\"; known are " + String.join(", ", Dialect.ALL.keySet()));
            }
            if (!namespace.isEmpty() && stage != null) {
                throw new IllegalArgumentException("the namespace's record says which stage to run: leave stage out");
            }
            if (stage == Stage.LEGACY) {
                throw new IllegalArgumentException("stage legacy needs a namespace");
            }
            return new Locker(this);
        }
    }

    /**
     * Returns when this Locker may acquire.
     *
     * @throws StageException what is in the way
     */
    public void ready(Duration timeout) throws InterruptedException {
        long until = System.nanoTime() + timeout.toNanos();
        while (true) {
            try {
                gate.open();
                return;
            } catch (Gate.NotNow why) {
                waitForTheGate(until, why, "");
            }
        }
    }

    /** The stage that attempts run now; empty where it is not known yet. */
    public Optional<Stage> stage() {
        return Optional.ofNullable(gate.stage());
    }

    /**
     * One attempt, past all waiters. It may take as long as an old client's command may be late, where it takes over from one.
     *
     * @throws NotAcquiredException another holds the lock
     */
    public HeldLock tryAcquire(String key) throws InterruptedException {
        return acquire(raw(key), System.nanoTime(), true);
    }

    /**
     * Waits in the key's queue. An interrupt ends the wait, and what it had is given back.
     *
     * @throws NotAcquiredException the wait is over
     */
    public HeldLock acquire(String key, Duration wait) throws InterruptedException {
        return waits(key, System.nanoTime() + wait.toNanos());
    }

    /** Waits in the key's queue, for ever. */
    public HeldLock acquire(String key) throws InterruptedException {
        return waits(key, System.nanoTime() + FOREVER);
    }

    /** A view for code that wants {@link Lock}. Read what it cannot promise: {@link LockView}. */
    public Lock lock(String key) {
        return new LockView(this, key);
    }

    private HeldLock waits(String key, long until) throws InterruptedException {
        String name = raw(key);
        start("listens", this::listen);
        synchronized (waiting) {
            waiting.merge(name, 1, Integer::sum);
        }
        ear.put(Mailbox.LOOK);
        try {
            return acquire(name, until, false);
        } finally {
            synchronized (waiting) {
                waiting.merge(name, -1, (a, b) -> a + b == 0 ? null : a + b);
            }
        }
    }

    private static String raw(String key) {
        if (key.isEmpty()) {
            throw new IllegalArgumentException("the key is empty");
        }
        return Raw.of(key);
    }

    private HeldLock acquire(String key, long until, boolean once) throws InterruptedException {
        while (true) {
            Gate.Permit permit;
            try {
                permit = gate.enter(key);
            } catch (Gate.NotNow why) {
                waitForTheGate(until, why, key);
                continue;
            }
            HeldLock lock = attempt(key, permit, until, once);
            if (lock != null) {
                return lock;
            }
        }
    }

    private void waitForTheGate(long until, Gate.NotNow why, String key) throws InterruptedException {
        long left = until - System.nanoTime();
        if (left <= 0) {
            throw new StageException(why.getMessage(), Raw.text(key), null);
        }
        Mailbox mailbox = new Mailbox();
        others.add(mailbox);
        try {
            mailbox.take(Math.min(left, LOOK));
        } finally {
            others.remove(mailbox);
        }
    }

    /** One acquisition in one stage. Null: the stage has changed. */
    private HeldLock attempt(String key, Gate.Permit permit, long until, boolean once) throws InterruptedException {
        Terms terms = permit.terms;
        Machines.Held h = new Machines.Held(key, terms, permit.order.stage);
        Machines.Bound bound = () -> gate.bound(permit);
        Mailbox mailbox = new Mailbox();
        String waiter = h.stage == Stage.LEGACY ? Dialect.random() : h.value;
        mailboxes.put(waiter, mailbox);
        long began = System.nanoTime();
        Machines.Outcome outcome;
        try {
            if (h.stage == Stage.LEGACY) {
                outcome = machines.legacyAcquire(h, bound, until, mailbox);
            } else {
                outcome = machines.bridgeAcquire(h, bound, until, once ? null : () -> hears ? channel : "-", mailbox);
            }
        } catch (Machines.Changed changed) {
            if (undo(h).verdict.gone()) {
                gate.leave(permit);
            } else {
                behind.execute(() -> giveBack(h, permit, System.nanoTime()));
            }
            return null;
        } catch (InterruptedException | RuntimeException | Error e) {
            behind.execute(() -> giveBack(h, permit, began));
            throw e;
        } finally {
            mailboxes.remove(waiter);
        }
        long now = System.nanoTime();
        if (outcome.verdict == Verdict.ACQUIRED) {
            h.doubt = false;
            h.since = now;
            if (now - outcome.until < 0) {
                HeldLock lock = new HeldLock(this, h, permit, outcome.until, outcome.fence);
                lock.due = now + Math.min(h.stage == Stage.LEGACY ? terms.lease / 3 : terms.renew(), (outcome.until - now) / 2);
                gate.acquired(permit);
                held.add(lock);
                if (closed) {
                    lose(lock, LockLostException.Reason.CLOSED, "the Locker was closed");
                }
                start("renews", this::renew);
                renewals.put(Mailbox.LOOK);
                return lock;
            }
        }
        if (outcome.verdict == Verdict.ACQUIRED || outcome.verdict == Verdict.UNSURE || !h.entry.isEmpty()) {
            behind.execute(() -> giveBack(h, permit, began));
        } else {
            gate.leave(permit);
        }
        if (outcome.verdict == Verdict.ACQUIRED && !once && until - now > 0) {
            return null; // it came too late to be used; what it took is given back behind
        }
        String name = Raw.text(key), seen = outcome.seen.isEmpty() ? "" : Json.quote(outcome.seen);
        switch (outcome.verdict) {
            case FOREIGN:
                throw new ForeignFormatException(name + " holds " + seen + ", which is not of dialect " + terms.dialect.name + "; it counts as held and is never taken over",
                        name, Raw.bytes(outcome.seen));
            case ACQUIRED:
                throw new NotAcquiredException(name + ": the answer came after the end of the lease that it gave", name, null);
            case BUSY:
                throw new NotAcquiredException(name + " is held" + (seen.isEmpty() ? "" : ": " + seen), name, null);
            default:
        }
        String text = "acquire " + name + ": " + outcome.error;
        if (outcome.verdict == Verdict.UNSURE) {
            throw new UnknownOutcomeException(text, name, outcome.error);
        }
        if (!String.valueOf(outcome.error).contains("STAGE ")) {
            throw new LockException(text, name, outcome.error);
        }
        if (once) {
            throw new StageException(text, name, outcome.error);
        }
        return null; // it came after the member's lease: the gate says when the next attempt may begin
    }

    private Machines.Outcome undo(Machines.Held h) {
        if (h.stage != Stage.LEGACY) {
            return machines.drop(h, new Machines.Outcome(Verdict.RELEASED));
        }
        if (h.doubt && !h.terms.dialect.unique) {
            return new Machines.Outcome(Verdict.UNSURE); // the value may be a twin's: its lease has to run out
        }
        return h.since != 0 || h.doubt ? machines.legacyRelease(h) : new Machines.Outcome(Verdict.NOTHING);
    }

    /** Tries until it is over by itself. */
    private void giveBack(Machines.Held h, Gate.Permit permit, long began) {
        long over = began + h.terms.longest() + 5 * Terms.SECOND;
        if (!h.entry.isEmpty()) {
            over = Math.max(over, gate.until() + h.terms.ttl);
        }
        for (long pause = 50 * Terms.MS; System.nanoTime() - over < 0 && !undo(h).verdict.gone(); pause = Math.min(2 * pause, Terms.SECOND)) {
            sleep(pause);
        }
        gate.leave(permit);
    }

    private static void sleep(long nanos) {
        try {
            TimeUnit.NANOSECONDS.sleep(nanos);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt(); // nobody interrupts the Locker's own threads
        }
    }

    /** Has what is due renewed, for as long as the Locker lives, and tells a deadline that passes. It asks nobody itself: a server that is silent holds nothing up. */
    private void renew() throws InterruptedException {
        while (!closed) {
            long now = System.nanoTime(), next = now + 60 * Terms.SECOND;
            held.removeIf(lock -> lock.gone);
            for (HeldLock lock : held) {
                if (now - lock.until >= 0) {
                    lose(lock, LockLostException.Reason.DEADLINE, "its lease is over, and no renewal was confirmed in time");
                    continue;
                }
                if (!lock.resting && lock.due - now <= 0) {
                    lock.due = now + FOREVER; // the renewal says when the next one is
                    behind.execute(() -> {
                        renew(lock);
                        renewals.put(Mailbox.LOOK);
                    });
                }
                long moment = lock.resting || lock.until - lock.due < 0 ? lock.until : lock.due;
                next = moment - next < 0 ? moment : next;
            }
            renewals.take(Math.max(0, next - System.nanoTime()));
        }
    }

    void renew(HeldLock lock) {
        Machines.Held h = lock.held;
        synchronized (lock.turn) {
            if (lock.gone || lock.resting) {
                return;
            }
            Machines.Outcome outcome;
            try {
                outcome = h.stage == Stage.LEGACY ? machines.legacyRenew(h, gate::bound) : machines.bridgeRenew(h, gate::bound);
            } catch (Machines.Changed never) {
                throw new IllegalStateException(never);
            }
            long now = System.nanoTime();
            switch (outcome.verdict) {
                case RENEWED:
                    if (now - lock.until >= 0) {
                        lose(lock, LockLostException.Reason.DEADLINE, "the reply to its renewal came after the deadline");
                        return;
                    }
                    if (outcome.until - lock.until > 0) {
                        lock.until = outcome.until;
                    }
                    lock.due = now + (h.stage == Stage.LEGACY ? h.terms.lease / 3 : h.terms.renew());
                    break;
                case DISPLACED:
                    lose(lock, LockLostException.Reason.DISPLACED, "another client came in after a stale DEL, or overwrote the key; it holds " + Json.quote(outcome.seen));
                    break;
                case LOST:
                    lose(lock, LockLostException.Reason.TAKEN, "the key is not ours any more");
                    break;
                default:
                    lock.due = now + Math.max(20 * Terms.MS, Math.min(Terms.SECOND / 2, (lock.until - now) / 10));
            }
        }
    }

    private void lose(HeldLock lock, LockLostException.Reason reason, String why) {
        synchronized (lock) {
            if (lock.gone || lock.lost != null) {
                return;
            }
            lock.lost = new LockLostException("lock " + lock.key() + " lost (" + reason.name().toLowerCase(java.util.Locale.ROOT) + "): " + why, lock.key(), reason);
            lock.gone = true;
        }
        if (reason == LockLostException.Reason.DEADLINE) {
            gate.leave(lock.permit);
        }
        behind.execute(() -> {
            try {
                lock.tell();
            } catch (RuntimeException e) {
                LOG.log(Level.SEVERE, "onLost of lock " + lock.key(), e);
            }
            if (reason == LockLostException.Reason.TAKEN || reason == LockLostException.Reason.DISPLACED) { // the holder may be at work yet
                sleep(Math.max(0, lock.until - System.nanoTime()));
                gate.leave(lock.permit);
            } // what a closed Locker held stays on the server, and is counted
        });
    }

    void release(HeldLock lock) {
        synchronized (lock) {
            if (lock.resting && lock.gone && lock.lost == null) {
                return;
            }
            lock.resting = true;
        }
        Machines.Held h = lock.held;
        String name = lock.key();
        synchronized (lock.turn) {
            Machines.Outcome outcome = given(h);
            if (!outcome.verdict.gone()) {
                behind.execute(() -> releaseAgain(lock));
                if (lock.lost != null) {
                    throw lock.lost;
                }
                String text = "release " + name + ": " + outcome.error + "; it is tried again until its lease is over";
                throw outcome.verdict == Verdict.UNSURE ? new UnknownOutcomeException(text, name, outcome.error) : new LockException(text, name, outcome.error);
            }
            if (outcome.verdict == Verdict.DISPLACED) {
                lose(lock, LockLostException.Reason.DISPLACED, "another client's value stands on the key: " + Json.quote(outcome.seen));
            } else if (outcome.verdict == Verdict.NOTHING) {
                lose(lock, LockLostException.Reason.TAKEN, "the key was not ours any more when it was released");
            }
            synchronized (lock) {
                lock.gone = true;
            }
        }
        held.remove(lock);
        gate.leave(lock.permit);
        if (lock.lost != null) {
            throw lock.lost;
        }
    }

    private Machines.Outcome given(Machines.Held h) {
        int behindUs;
        synchronized (waiting) {
            behindUs = Math.max(waiting.getOrDefault(h.key, 0) - 1, 0);
        }
        return h.stage == Stage.LEGACY ? machines.legacyRelease(h) : machines.bridgeRelease(h, behindUs);
    }

    private void releaseAgain(HeldLock lock) {
        for (long pause = 50 * Terms.MS; System.nanoTime() - lock.until < 0; pause = Math.min(2 * pause, Terms.SECOND)) {
            sleep(pause);
            synchronized (lock.turn) {
                if (given(lock.held).verdict.gone()) {
                    break;
                }
            }
        }
        lock.gone = true;
        gate.leave(lock.permit);
    }

    private void report() throws InterruptedException {
        while (!closed) {
            long due = member.report();
            reports.take(Math.max(due, 5 * Terms.MS));
        }
    }

    /** Hears of grants, on a connection of its own; while there is none, waiters poll. A word to itself shows that it still hears. */
    private void listen() throws InterruptedException {
        byte[] name = Raw.bytes(channel);
        for (long pause = 100 * Terms.MS; !closed; pause = Math.min(2 * pause, 5 * Terms.SECOND)) {
            heard = System.nanoTime();
            try (RedisServer.Subscription s = server.subscribe(name, this::hear, this::subscribed)) {
                while (!closed && System.nanoTime() - heard < 5 * Terms.SECOND) {
                    ear.take(2 * Terms.SECOND);
                    if (hears) {
                        pause = 100 * Terms.MS;
                    }
                    synchronized (waiting) {
                        if (waiting.isEmpty()) {
                            heard = System.nanoTime(); // nobody needs it
                            continue;
                        }
                    }
                    if (System.nanoTime() - heard > 2 * Terms.SECOND) {
                        server.send(Raw.bytes("PUBLISH"), name, Raw.bytes("alive"));
                    }
                }
            } catch (RedisServer.ErrorReply | RedisServer.NoAnswer e) {
                LOG.log(Level.FINE, "the channel of waiters", e);
            }
            hears = false;
            if (!closed) {
                TimeUnit.NANOSECONDS.sleep(pause);
            }
        }
    }

    private void subscribed() {
        heard = System.nanoTime();
        hears = true;
        wakeAttempts();
    }

    /** A word on the channel: "head TOKEN", the key may be free; "TICKET FENCE TOKEN", it is ours. */
    private void hear(byte[] message) {
        heard = System.nanoTime();
        String[] words = Raw.of(message).split(" ", 2);
        if (words.length < 2) {
            return;
        }
        String fence = "0", token = words[1];
        if (!words[0].equals("head")) {
            int blank = token.indexOf(' ');
            fence = token.substring(0, Math.max(blank, 0));
            token = token.substring(blank + 1);
        }
        Mailbox mailbox = mailboxes.get(token);
        if (mailbox == null) {
            return;
        }
        try {
            mailbox.put(words[0].equals("head") ? Mailbox.LOOK : new Mailbox.Grant(Long.parseLong(words[0]), Long.parseLong(fence)));
        } catch (NumberFormatException e) {
            mailbox.put(Mailbox.LOOK);
        }
    }

    private void wake(Gate.Whom whom) {
        reports.put(Mailbox.LOOK);
        if (whom == Gate.Whom.EVERYBODY) {
            others.forEach(mailbox -> mailbox.put(Mailbox.LOOK));
            wakeAttempts();
        }
    }

    private void wakeAttempts() {
        mailboxes.values().forEach(mailbox -> mailbox.put(Mailbox.LOOK));
    }

    private interface Loop {
        void run() throws InterruptedException;
    }

    private void start(String name, Loop loop) {
        synchronized (threads) {
            if (!threads.containsKey(name) && !closed) {
                Thread thread = thread(name, () -> {
                    try {
                        loop.run();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                });
                threads.put(name, thread);
                thread.start();
            }
        }
    }

    private static Thread thread(String name, Runnable work) {
        Thread thread = new Thread(work, "lockmigrate-" + name);
        thread.setDaemon(true);
        return thread;
    }

    /**
     * Ends the renewals and says goodbye. Release locks first: those that are held are lost to their holders at once, and stay on the server until their leases end.
     * The server's connections stay open: they are the caller's.
     */
    @Override
    public void close() {
        List<Thread> running;
        synchronized (threads) {
            if (closed) {
                return;
            }
            closed = true;
            running = new ArrayList<>(threads.values());
        }
        gate.close();
        held.forEach(lock -> lose(lock, LockLostException.Reason.CLOSED, "the Locker was closed"));
        renewals.put(Mailbox.LOOK);
        ear.put(Mailbox.LOOK);
        boolean interrupted = false;
        for (Thread thread : running) {
            try {
                if (thread != Thread.currentThread()) {
                    thread.join(10_000);
                }
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (member != null) {
            member.leave();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
