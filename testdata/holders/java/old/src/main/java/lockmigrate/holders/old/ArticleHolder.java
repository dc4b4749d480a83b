// ArticleHolder.java: kind `article`, the article's lock with a clock hook (dialect A).
package lockmigrate.holders.old;

import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Clock;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import lockmigrate.holders.Reading;

final class ArticleHolder implements Holder {
    private final Connection connection;
    private final long leaseMs;
    private final long waitMs;
    private final Clock clock;
    private final Map<String, ArticleLock> locks = new HashMap<>();

    /** The defaults are the article's: a lease of 5 minutes, a timeout of 300 ms. */
    ArticleHolder(Options options) {
        options.without("poll");
        leaseMs = options.lease(300_000);
        waitMs = options.finiteWait(300);
        clock = options.clock();
        connection = new Connection(options);
    }

    @Override
    public String version() {
        return "own code after the article, " + Connection.JEDIS;
    }

    @Override
    public long waitMs() {
        return waitMs;
    }

    @Override
    public long pollMs() {
        return ArticleLock.POLL_MS;
    }

    @Override
    public Outcome acquire(String key, long wait) throws Exception {
        ArticleLock lock = lock(key);
        return connection.use(jedis -> lock.acquire(jedis, wait) ? Outcome.acquired(lock.value()) : Outcome.BUSY);
    }

    @Override
    public Boolean release(String key) throws Exception {
        return connection.use(jedis -> lock(key).release(jedis));
    }

    @Override
    public Reading parse(long nowMs, byte[] value) {
        return Decimal.read(nowMs, value);
    }

    @Override
    public void clock(long offsetMs) {
        clock.offset(offsetMs);
    }

    private ArticleLock lock(String key) {
        return locks.computeIfAbsent(key, k -> new ArticleLock(k, leaseMs, clock));
    }
}
