// UuidHolder.java: kind `jedis-uuid`, jedis-lock's master with a clock hook (dialect B).
package lockmigrate.holders.old;

import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Clock;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import lockmigrate.holders.Reading;

final class UuidHolder implements Holder {
    private final Connection connection;
    private final long leaseMs;
    private final long waitMs;
    private final long pollMs;
    private final Clock clock;
    private final Map<String, UuidLock> locks = new HashMap<>();

    UuidHolder(Options options) {
        leaseMs = options.lease(60_000);
        waitMs = options.finiteWait(10_000);
        pollMs = Math.max(1, options.poll(100));
        clock = options.clock();
        connection = new Connection(options);
    }

    @Override
    public String version() {
        return "own code after jedis-lock 1.0.1-SNAPSHOT, " + Connection.JEDIS;
    }

    @Override
    public long waitMs() {
        return waitMs;
    }

    @Override
    public long pollMs() {
        return pollMs;
    }

    @Override
    public Outcome acquire(String key, long wait) throws Exception {
        UuidLock lock = lock(key);
        return connection.use(jedis -> lock.acquire(jedis, wait) ? Outcome.acquired(lock.value()) : Outcome.BUSY);
    }

    @Override
    public Boolean release(String key) throws Exception {
        return connection.use(jedis -> lock(key).release(jedis));
    }

    @Override
    public boolean renew(String key) throws Exception {
        return connection.use(jedis -> lock(key).renew(jedis, waitMs));
    }

    @Override
    public Reading parse(long nowMs, byte[] value) {
        return Stamp.read(nowMs, value);
    }

    @Override
    public void clock(long offsetMs) {
        clock.offset(offsetMs);
    }

    private UuidLock lock(String key) {
        return locks.computeIfAbsent(key, k -> new UuidLock(k, leaseMs, pollMs, clock));
    }
}
