// ArticleHaHolder.java: kind `article-ha`, the article's lock on the current Jedis, over a cluster or sentinels (dialect A).
package lockmigrate.holders.current;

import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Clock;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import redis.clients.jedis.UnifiedJedis;

/**
 * What became of the old lock in services whose Redis became a cluster: the same SETNX, GET, GETSET and DEL through
 * the client that follows redirections. That client sends a command again when its connection broke, SETNX included:
 * the second may then find the first's value, and nobody holds the lock until it expires.
 */
final class ArticleHaHolder implements Holder {
    private static final int POLL_MS = 100;

    private final UnifiedJedis redis;
    private final long leaseMs;
    private final long waitMs;
    private final Clock clock;
    private final Map<String, String> held = new HashMap<>();

    ArticleHaHolder(Options options) {
        options.without("poll");
        leaseMs = options.lease(300_000);
        waitMs = options.finiteWait(300);
        clock = options.clock();
        redis = Client.openAny(options);
    }

    @Override
    public String version() {
        return "own code after the article, " + Client.JEDIS;
    }

    @Override
    public long waitMs() {
        return waitMs;
    }

    @Override
    public long pollMs() {
        return POLL_MS;
    }

    @Override
    public Outcome acquire(String key, long wait) throws InterruptedException {
        for (long timeout = wait; timeout >= 0; timeout -= POLL_MS) {
            String expires = String.valueOf(clock.now() + leaseMs + 1);
            if (redis.setnx(key, expires) == 1) {
                return got(key, expires);
            }
            String current = redis.get(key);
            if (current != null && Long.parseLong(current) < clock.now()) {
                String old = redis.getSet(key, expires);
                if (old != null && old.equals(current)) {
                    return got(key, expires);
                }
            }
            Thread.sleep(POLL_MS);
        }
        return Outcome.BUSY;
    }

    private Outcome got(String key, String expires) {
        held.put(key, expires);
        return Outcome.acquired(expires);
    }

    /** A blind DEL when the local flag says held, as in `article`. */
    @Override
    public Boolean release(String key) {
        return held.remove(key) != null && redis.del(key) == 1;
    }

    @Override
    public void clock(long offsetMs) {
        clock.offset(offsetMs);
    }
}
