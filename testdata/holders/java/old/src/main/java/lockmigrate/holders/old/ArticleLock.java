// ArticleLock.java: the lock that countless articles print, re-expressed with a clock that can be moved (dialect A).
package lockmigrate.holders.old;

import lockmigrate.holders.Clock;
import redis.clients.jedis.Jedis;

/**
 * Behaves like the class in "Distributed locks with Redis" (SETNX and GETSET over Jedis): the value is the expiry in
 * ms, the timeout is counted in sleeps of 100 ms, and a value that is not a number throws out of acquire. The article
 * shows no release; its readers use the blind DEL of jedis-lock, and so does this one.
 */
final class ArticleLock {
    static final int POLL_MS = 100;

    private final String key;
    private final long leaseMs;
    private final Clock clock;
    private String held;

    ArticleLock(String key, long leaseMs, Clock clock) {
        this.key = key;
        this.leaseMs = leaseMs;
        this.clock = clock;
    }

    boolean acquire(Jedis jedis, long timeoutMs) throws InterruptedException {
        for (long timeout = timeoutMs; timeout >= 0; timeout -= POLL_MS) {
            String expires = String.valueOf(clock.now() + leaseMs + 1);
            if (jedis.setnx(key, expires) == 1) {
                held = expires;
                return true;
            }
            String current = jedis.get(key);
            if (current != null && Long.parseLong(current) < clock.now()) {
                // Of all who saw the same expired value, only the first gets that value back. The others have
                // overwritten the winner's value by then: the clobber.
                String old = jedis.getSet(key, expires);
                if (old != null && old.equals(current)) {
                    held = expires;
                    return true;
                }
            }
            Thread.sleep(POLL_MS);
        }
        return false;
    }

    /** Whether the DEL removed something. It is sent however long ago the lease ended: the stale delete. */
    boolean release(Jedis jedis) {
        if (held == null) {
            return false;
        }
        long removed = jedis.del(key);
        held = null;
        return removed == 1;
    }

    String value() {
        return held;
    }
}
