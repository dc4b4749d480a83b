// JedisLockHolder.java: kind `jedis-lock`, the released jedis-lock 1.0.0 jar, unmodified (dialect A).
package lockmigrate.holders.old;

import com.github.jedis.lock.JedisLock;
import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Artifact;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import lockmigrate.holders.Reading;

/** The jar reads System.currentTimeMillis() itself: move its clock with libfaketime. Its poll is fixed. */
final class JedisLockHolder implements Holder {
    private final Connection connection;
    private final int leaseMs;
    private final int waitMs;
    /** The lock object that acquired last, by key: its flag decides whether release sends DEL. */
    private final Map<String, JedisLock> held = new HashMap<>();

    JedisLockHolder(Options options) {
        options.without("clock", "poll");
        leaseMs = Math.toIntExact(options.lease(60_000));
        waitMs = Math.toIntExact(options.finiteWait(10_000));
        connection = new Connection(options);
    }

    @Override
    public String version() {
        return Artifact.named("com.github.jedis-lock", "jedis-lock") + ", " + Connection.JEDIS;
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
    public Outcome acquire(String key, long wait) throws Exception {
        return connection.use(jedis -> {
            // The timeout is a constructor argument, so each call has an object of its own, as in most callers.
            JedisLock lock = new JedisLock(jedis, key, Math.toIntExact(wait), leaseMs);
            if (!lock.acquire()) {
                return Outcome.BUSY;
            }
            held.put(key, lock);
            return Outcome.acquired(null);
        });
    }

    @Override
    public Boolean release(String key) throws Exception {
        return connection.use(jedis -> {
            JedisLock lock = held.get(key);
            (lock == null ? new JedisLock(jedis, key) : lock).release();
            held.remove(key);
            return null;
        });
    }

    @Override
    public Reading parse(long nowMs, byte[] value) {
        return Decimal.read(nowMs, value);
    }
}
