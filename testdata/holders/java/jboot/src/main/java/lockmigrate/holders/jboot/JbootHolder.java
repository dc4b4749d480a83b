// JbootHolder.java: kind `jboot`, the JbootRedisLock of jboot 3.16.0, unmodified.
package lockmigrate.holders.jboot;

import io.jboot.support.redis.JbootRedisLock;
import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Artifact;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;

/**
 * The lock reads System.currentTimeMillis() itself: move its clock with libfaketime. Its poll is fixed. Its value is a
 * Long as FST serializes it, jboot's default.
 */
final class JbootHolder implements Holder {
    private final long leaseMs;
    private final long waitMs;
    /** The lock object that acquired last, by key: its flag decides whether release sends DEL. */
    private final Map<String, JbootRedisLock> held = new HashMap<>();

    JbootHolder(Options options) {
        options.without("clock", "poll", "cluster", "sentinels");
        leaseMs = options.lease(60_000);
        waitMs = options.finiteWait(10_000);
        // jboot has one Redis for the process, set by properties.
        System.setProperty("jboot.redis.host", options.host);
        System.setProperty("jboot.redis.port", Integer.toString(options.port));
        System.setProperty("jboot.redis.database", Integer.toString(options.database));
        if (options.password != null) {
            System.setProperty("jboot.redis.password", options.password);
        }
        new JbootRedisLock("").isLocked(); // reads the properties and opens the pool
        io.jboot.Jboot.getRedis().ping(); // the first acquire is not slower than the others
        io.jboot.Jboot.getSerializer().serialize(0L);
    }

    @Override
    public String version() {
        return Artifact.named("io.jboot", "jboot") + ", " + Artifact.named("redis.clients", "jedis");
    }

    @Override
    public long waitMs() {
        return waitMs;
    }

    @Override
    public long pollMs() {
        return 100;
    }

    @Override
    public Outcome acquire(String key, long wait) {
        JbootRedisLock lock = new JbootRedisLock(key, wait);
        lock.setExpireMsecs(leaseMs);
        if (!lock.acquire()) {
            return Outcome.BUSY;
        }
        held.put(key, lock);
        return Outcome.acquired(null);
    }

    @Override
    public Boolean release(String key) {
        JbootRedisLock lock = held.remove(key);
        (lock == null ? new JbootRedisLock(key) : lock).release();
        return null;
    }
}
