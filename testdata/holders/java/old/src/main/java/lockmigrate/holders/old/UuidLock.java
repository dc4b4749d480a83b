// UuidLock.java: the unreleased master of jedis-lock (1.0.1-SNAPSHOT), re-expressed with a clock hook (dialect B).
package lockmigrate.holders.old;

import java.util.UUID;
import lockmigrate.holders.Clock;
import redis.clients.jedis.Jedis;

/**
 * Differs from 1.0.0 in what it takes over: its own stamp, and anything that is not a stamp. A key that is gone
 * between SETNX and GET counts as expired too: the GETSET then plants a stamp, and the next round finds it "mine".
 */
final class UuidLock {
    private final String key;
    private final long leaseMs;
    private final long pollMs;
    private final Clock clock;
    private final UUID uuid = UUID.randomUUID();
    private Stamp held;

    UuidLock(String key, long leaseMs, long pollMs, Clock clock) {
        this.key = key;
        this.leaseMs = leaseMs;
        this.pollMs = pollMs;
        this.clock = clock;
    }

    boolean acquire(Jedis jedis, long timeoutMs) throws InterruptedException {
        for (long timeout = timeoutMs; timeout >= 0; timeout -= pollMs) {
            Stamp mine = new Stamp(uuid, clock.now() + leaseMs + 1);
            if (jedis.setnx(key, mine.toString()) == 1) {
                held = mine;
                return true;
            }
            String current = jedis.get(key);
            if (Stamp.of(current).expiredOrMine(uuid, clock.now())) {
                String old = jedis.getSet(key, mine.toString());
                if (old != null && old.equals(current)) {
                    held = mine;
                    return true;
                }
            }
            Thread.sleep(pollMs);
        }
        return false;
    }

    /** Acquires again, waiting if need be, when the stored stamp is mine or expired. */
    boolean renew(Jedis jedis, long timeoutMs) throws InterruptedException {
        return Stamp.of(jedis.get(key)).expiredOrMine(uuid, clock.now()) && acquire(jedis, timeoutMs);
    }

    /** A blind DEL, as in 1.0.0. */
    boolean release(Jedis jedis) {
        if (held == null) {
            return false;
        }
        long removed = jedis.del(key);
        held = null;
        return removed == 1;
    }

    String value() {
        return held.toString();
    }
}
