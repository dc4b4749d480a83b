// BridgeLock.java: the bridge lock for Java services, over the scripts that `lockmigrate scripts` prints.
package lockmigrate.bridge;

import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A lock that SETNX/GETSET clients, bridge clients and token clients on the same key all respect. Every transition is
 * one script on the server, whose clock is the only one. This class needs nothing but a way to call EVAL.
 *
 * <pre>{@code
 * try (BridgeLock.Holding holding = lock.hold("lock.orders", 30_000)) { // null when the wait is over
 *     while (holding != null && holding.alive() && work.step()) {}
 * }
 * }</pre>
 *
 * <p>hold() renews by a thread of its own, so Eval must be safe for threads. Who uses acquire() or tryAcquire() renews a
 * held lock at least three times in each TTL, and more often than the shortest legacy lease; when renew() is false, or
 * throws until the TTL is over, the lock is lost and the work has to stop.
 */
public final class BridgeLock {
    /** EVAL of any client: replies as Long, String or byte[], and lists of them. */
    public interface Eval {
        Object eval(String script, List<String> keys, List<String> args);
    }

    /** What the scripts must know of the fleet. The relations are those of compat.Options in the Go library. */
    public static final class Options {
        public long ttlMs = 10_000;
        /** At least the lag of legacy clocks plus the delay of their commands. */
        public long graceMs = 1_250;
        /** At least the delay of legacy commands; with it below the shortest legacy lease. */
        public long settleMs = 250;
        /** How often hold() renews, at least each third of ttlMs; 0 is that third. Less than the shortest legacy lease. */
        public long renewMs = 0;
        /** The pause between two attempts of acquire(), less up to half at random. */
        public long pollMs = 100;
        /** Of the fleet's dialect: ms (jedis), s, float (redis-py) or ns. It has to be set: nothing here can guess it. */
        public String unit;
        /** Of its values: plain, or quoted. Dialects with an owner in the value need one in newValue() too. */
        public String layout = "plain";
        public long fenceTtlMs = 60_000;
        /** For how long a contended key is left free at a time, more than the pause between two looks of an old client; 0: never. */
        public long yieldMs = 120;
        /** For how long a key stays free of bridge clients after a release; 5 where old clients take a key that has gone for an expired one. */
        public long breathMs = 0;
        /** For how long a lock that is handed over waits for us; 0 is a second, or five polls. */
        public long claimMs = 0;
    }

    /** A held lock. */
    public static final class Held {
        public final String key;
        public final String value;
        /** Larger than that of every earlier holder: let stores refuse writes with a smaller one. */
        public final long fence;

        /** A time of System.nanoTime() before it was taken. */
        private final long since;

        Held(String key, String value, long fence, long since) {
            this.key = key;
            this.value = value;
            this.fence = fence;
            this.since = since;
        }

        long heldMs() {
            return (System.nanoTime() - since) / 1_000_000;
        }
    }

    private static final int MOST_SETTLES = 8;
    private static final SecureRandom RANDOM = new SecureRandom();

    /** The keys of the scripts, by the names in their headers: what stands behind the lock's key. */
    private static final Map<String, String> SUFFIXES =
            Map.of("key", "", "guard", ":guard", "fence", ":fence", "yield", ":yield", "queue", ":queue");

    private final Script acquire;
    private final Script settle;
    private final Script renew;
    private final Script release;
    private final Eval redis;
    private final Options options;
    /** The scripts' arguments, by the names in their headers. */
    private final Map<String, String> values = new HashMap<>();
    /** Throws where the namespace is not what it was. An attempt calls it first, at most once in ttlMs. */
    private Runnable record = () -> {};
    private volatile long nextLook;

    /** The scripts are the texts of bridge_acquire, bridge_settle, bridge_renew and bridge_release. */
    public BridgeLock(Eval redis, Options options, String acquire, String settle, String renew, String release) {
        if (!List.of("ms", "s", "float", "ns").contains(String.valueOf(options.unit))) {
            throw new IllegalArgumentException("Options.unit is " + options.unit + ": set it to ms, s, float or ns");
        }
        this.redis = redis;
        this.options = options;
        nextLook = System.nanoTime() + options.ttlMs * 1_000_000;
        values.put("ttl", text(options.ttlMs));
        values.put("fence_ttl", text(options.fenceTtlMs));
        values.put("not_after", "0");
        values.put("gap", text(options.yieldMs));
        values.put("rules", options.graceMs + " " + options.unit + " " + options.layout + " " + options.yieldMs);
        values.put("behind", "0");
        values.put("breath", text(options.breathMs));
        values.put("hand", "0");
        values.put("entry", "");
        values.put("stood", "");
        values.put("queue_ttl", text(90_000 + options.ttlMs));
        this.acquire = new Script(acquire);
        this.settle = new Script(settle);
        this.renew = new Script(renew);
        this.release = new Script(release);
    }

    /** A script, and what it names in its header. */
    private final class Script {
        private final String text;
        private final List<String> keys = new ArrayList<>();
        private final List<String> args = new ArrayList<>();

        Script(String text) {
            this.text = text;
            Matcher lines = Pattern.compile("^-- (KEYS|ARGV) (\\[?)(\\w+)", Pattern.MULTILINE).matcher(text);
            while (lines.find()) {
                boolean key = lines.group(1).equals("KEYS");
                String name = lines.group(3);
                boolean known = key ? SUFFIXES.containsKey(name) : name.matches("value|held") || values.containsKey(name);
                if (key ? keys.contains(null) : args.contains(null)) {
                    continue; // behind one that is left out
                }
                if (!known && !lines.group(2).isEmpty()) {
                    (key ? keys : args).add(null); // it may be left out, and so may all that follow it
                    continue;
                }
                if (!known) {
                    throw new IllegalArgumentException("a script needs " + name + ": take scripts and class from one version");
                }
                (key ? keys : args).add(name);
            }
        }

        List<?> run(Held held) {
            return run(held, Map.of());
        }

        /** More are further values; the queue is the lock's own key for one who waits for nobody. */
        List<?> run(Held held, Map<String, String> more) {
            List<String> names = new ArrayList<>();
            for (String name : keys) {
                if (name == null) {
                    break;
                }
                boolean own = name.equals("key") || more.containsKey(name);
                names.add(own ? held.key : beside(held.key, SUFFIXES.get(name)));
            }
            List<String> given = new ArrayList<>();
            for (String name : args) {
                if (name == null) {
                    break;
                }
                String value = more.getOrDefault(name, values.get(name));
                given.add(name.equals("value") ? held.value : name.equals("held") ? text(held.heldMs()) : value);
            }
            Object reply = redis.eval(text, names, given);
            return reply instanceof List ? (List<?>) reply : List.of(reply);
        }
    }

    /** One attempt, past all waiters; null when another holds the key. A lock that is returned is ours. */
    public Held tryAcquire(String key) throws InterruptedException {
        return attempts(key, newValue(), Map.of("queue", ""), System.nanoTime());
    }

    /**
     * Waits in the key's queue until it has the lock; null when waitMs are over. It listens to no message: the lock is
     * handed to it, and it finds that at its next look.
     */
    public Held acquire(String key, long waitMs) throws InterruptedException {
        String value = newValue();
        long given = options.claimMs > 0 ? options.claimMs : Math.max(1000, 5 * options.pollMs);
        long claimMs = Math.min(options.ttlMs, given); // ours before we have found it
        Map<String, String> entry = Map.of("entry", claimMs + " 0 1 - " + value);
        return attempts(key, value, entry, System.nanoTime() + waitMs * 1_000_000);
    }

    private Held attempts(String key, String value, Map<String, String> more, long end) throws InterruptedException {
        Held held = new Held(key, value, 0, System.nanoTime());
        boolean ours = false;
        try {
            while (true) {
                if (System.nanoTime() - nextLook >= 0) {
                    record.run();
                    nextLook = System.nanoTime() + options.ttlMs * 1_000_000;
                }
                held = new Held(key, value, 0, System.nanoTime());
                List<?> reply = acquire.run(held, more);
                long code = number(reply.get(0));
                if (code > 0) {
                    held = new Held(key, value, number(reply.get(1)), held.since);
                    ours = code == 1 || settled(held);
                }
                long leftMs = (end - System.nanoTime()) / 1_000_000;
                if (ours) {
                    return held;
                } else if (leftMs <= 0) {
                    return null;
                }
                boolean soon = code <= 0 && number(reply.get(1)) < 4; // the others wait until we look
                long pollMs = soon ? Math.max(1, options.pollMs / 10) : options.pollMs;
                Thread.sleep(Math.min(leftMs, pollMs / 2 + (long) (RANDOM.nextDouble() * pollMs / 2)));
            }
        } finally {
            if (!ours) { // also when a reply was lost: the value is ours alone, so this harms nobody
                release.run(held, more);
            }
        }
    }

    /** A lock that is renewed until it is closed; null when waitMs are over. */
    public Holding hold(String key, long waitMs) throws InterruptedException {
        Held held = acquire(key, waitMs);
        if (held == null) {
            return null;
        }
        Holding holding = new Holding(held);
        boolean ours = false;
        try {
            ours = holding.renewOnce(); // from here on the deadline is known: a takeover may have taken long
        } finally {
            if (!ours) { // also when the reply was lost: nobody else would release it
                release(held);
            }
        }
        if (!ours) {
            return null;
        }
        Thread renewing = new Thread(holding, "bridge-lock-renewal");
        renewing.setDaemon(true);
        renewing.start();
        return holding;
    }

    /** A held lock and the thread that renews it. */
    public final class Holding implements AutoCloseable, Runnable {
        public final Held held;
        private final CountDownLatch done = new CountDownLatch(1);
        private volatile long deadline;
        private volatile boolean lost;

        Holding(Held held) {
            this.held = held;
        }

        /** False: the lock is lost, or no renewal has been confirmed for a TTL. Stop working. */
        public boolean alive() {
            return !lost && System.nanoTime() - deadline < 0;
        }

        /** Ends the renewals and releases. */
        @Override
        public void close() {
            done.countDown();
            release(held);
        }

        @Override
        public void run() {
            long third = Math.max(1, options.ttlMs / 3);
            long every = options.renewMs > 0 ? Math.min(options.renewMs, third) : third;
            try {
                while (!done.await(every, TimeUnit.MILLISECONDS)) {
                    try {
                        if (!renewOnce()) {
                            return;
                        }
                    } catch (RuntimeException e) {
                        continue; // no reply: the old deadline stands, and the next round tries again
                    }
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt(); // the deadline ends the lock
            }
        }

        private boolean renewOnce() {
            long began = System.nanoTime();
            lost = !renew(held);
            deadline = began + options.ttlMs * 1_000_000;
            return !lost;
        }
    }

    /** After a takeover: wait for longer than a legacy client needs from its GET to its GETSET, and look. */
    private boolean settled(Held held) throws InterruptedException {
        for (int i = 0; i < MOST_SETTLES; i++) {
            Thread.sleep(options.settleMs);
            long code = number(settle.run(held).get(0));
            if (code <= 1) {
                return code == 1;
            }
        }
        return false;
    }

    /** False: the lock is lost. The deadline counts from before the call. */
    public boolean renew(Held held) {
        return number(renew.run(held).get(0)) > 0;
    }

    /** False: the lock had been lost, or another value stands on the key. Call it also for a lost lock. */
    public boolean release(Held held) {
        long code = number(release.run(held, Map.of("hand", "1")).get(0));
        if (code < 0) {
            release.run(held, Map.of()); // another value stands on the key: now the guard goes
        }
        return code > 0;
    }

    /** A number that every legacy reader takes for an expiry that never comes: 5e18 or more, below 9.2e18. */
    private static String newValue() {
        long n;
        do {
            n = RANDOM.nextLong() >>> 1;
        } while (n < 5_000_000_000_000_000_000L || n >= 9_200_000_000_000_000_000L);
        return Long.toString(n);
    }

    /** The name of a key in the lock's cluster slot: see Beside in the Go library, whose names these are. */
    static String beside(String key, String suffix) {
        int open = key.indexOf('{');
        int close = open < 0 ? -1 : key.indexOf('}', open + 1);
        if (close > open + 1) {
            return key + suffix + ":";
        }
        if (key.isEmpty() || key.indexOf('}') >= 0) {
            throw new IllegalArgumentException("no companion key for " + key + ": a closing brace without a hash tag");
        }
        return "{" + key + "}" + suffix;
    }

    private static String text(long n) {
        return Long.toString(n);
    }

    private static long number(Object reply) {
        if (reply instanceof Long) {
            return (Long) reply;
        }
        return Long.parseLong(reply instanceof byte[] ? new String((byte[]) reply, StandardCharsets.US_ASCII) : reply.toString());
    }
}
