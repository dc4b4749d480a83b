// SetNxPxHolder.java: kind `set-nx-px`, SET NX PX with a uuid and a compare-and-delete script (t3).
package lockmigrate.holders.current;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.SetParams;

/** Behaves like the Spring class of article 004 (a fresh uuid for each attempt, retries x sleep), without Spring. */
final class SetNxPxHolder implements Holder {
    // KEYS[1] the lock, ARGV[1] the token. Replies 1 when the key was removed, else 0. One script, because between
    // a GET and a DEL the lock could expire and become another's. (004's own text has a syntax error; 003's is right.)
    private static final String UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then "
            + "return redis.call('del', KEYS[1]) else return 0 end";

    private final RedisClient redis;
    private final long leaseMs;
    private final long waitMs;
    private final long pollMs;
    private final Map<String, String> tokens = new HashMap<>();

    SetNxPxHolder(Options options) {
        options.without("clock");
        leaseMs = options.lease(60_000);
        waitMs = options.finiteWait(3_000);
        pollMs = Math.max(1, options.poll(1_000));
        redis = Client.open(options);
    }

    @Override
    public String version() {
        return "own code after articles 003 and 004, " + Client.JEDIS;
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
            String token = UUID.randomUUID().toString();
            if (redis.set(key, token, SetParams.setParams().nx().px(leaseMs)) != null) {
                tokens.put(key, token);
                return Outcome.acquired(token);
            }
            if (retries <= 0) {
                return Outcome.BUSY;
            }
            Thread.sleep(pollMs);
        }
    }

    @Override
    public Boolean release(String key) {
        String token = tokens.remove(key);
        if (token == null) {
            return false;
        }
        return Long.valueOf(1).equals(redis.eval(UNLOCK, List.of(key), List.of(token)));
    }
}
