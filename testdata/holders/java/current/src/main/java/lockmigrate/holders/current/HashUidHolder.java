// HashUidHolder.java: kind `hash-uid`, article 001's own Lua lock, a hash with the owner as its field (t4).
package lockmigrate.holders.current;

import java.util.List;
import java.util.UUID;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import redis.clients.jedis.RedisClient;

/** Not reentrant, and counts its lease in whole seconds. The article tries once; `wait` repeats that every poll. */
final class HashUidHolder implements Holder {
    // KEYS[1] the lock, ARGV[1] the owner, ARGV[2] seconds. Replies 1 when acquired, else 0. One script, so that no
    // crash can leave the hash without an expiry.
    private static final String LOCK = "if (redis.call('exists', KEYS[1]) == 0) then "
            + "redis.call('hset', KEYS[1], ARGV[1], 1); redis.call('expire', KEYS[1], ARGV[2]); return 1; end; return 0;";
    // KEYS[1] the lock, ARGV[1] the owner. Replies 1 when removed, else 0. One script, so that only the owner deletes.
    private static final String UNLOCK = "if (redis.call('hexists', KEYS[1], ARGV[1]) == 1) then "
            + "redis.call('del', KEYS[1]); return 1; end; return 0;";

    private final RedisClient redis;
    private final String uid = UUID.randomUUID().toString();
    private final String seconds;
    private final long waitMs;
    private final long pollMs;

    HashUidHolder(Options options) {
        options.without("clock");
        seconds = Long.toString((options.lease(10_000) + 999) / 1000);
        waitMs = options.finiteWait(0);
        pollMs = Math.max(1, options.poll(100));
        redis = Client.open(options);
    }

    @Override
    public String version() {
        return "own code after article 001, " + Client.JEDIS;
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
    public Outcome acquire(String key, long wait) throws InterruptedException {
        for (long retries = wait / pollMs; ; retries--) {
            if (Long.valueOf(1).equals(redis.eval(LOCK, List.of(key), List.of(uid, seconds)))) {
                return Outcome.acquiredField(uid);
            }
            if (retries <= 0) {
                return Outcome.BUSY;
            }
            Thread.sleep(pollMs);
        }
    }

    @Override
    public Boolean release(String key) {
        return Long.valueOf(1).equals(redis.eval(UNLOCK, List.of(key), List.of(uid)));
    }
}
