// MemberHolder.java: kind `member`, the library clients/java on the current Jedis: of the namespace, or else the bridge.
package lockmigrate.holders.current;

import io.github.lockmigrate.HeldLock;
import io.github.lockmigrate.Locker;
import io.github.lockmigrate.NotAcquiredException;
import io.github.lockmigrate.jedis.JedisServer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.RedisClient;

final class MemberHolder implements Holder {
    private final Locker locker;
    private final long waitMs;
    private final Map<String, HeldLock> held = new HashMap<>();

    MemberHolder(Options options) {
        options.without("clock", "poll");
        waitMs = options.finiteWait(10_000);
        RedisClient redis = Client.open(options, 8);
        Locker.Builder builder = Locker.on(JedisServer.of(() -> new Jedis(redis.getPool().getResource())))
                .ttl(Duration.ofMillis(options.lease(10_000)));
        if (options.namespace() != null) {
            builder.namespace(options.namespace()).member(options.id);
        }
        locker = builder.build();
        try {
            locker.ready(Duration.ofMinutes(1));
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public String version() {
        return "clients/java, " + Client.JEDIS;
    }

    @Override
    public long waitMs() {
        return waitMs;
    }

    @Override
    public long pollMs() {
        return 100; // of what cannot be heard; the dialect's
    }

    @Override
    public Outcome acquire(String key, long wait) throws InterruptedException {
        try {
            HeldLock lock = wait == 0 ? locker.tryAcquire(key) : locker.acquire(key, Duration.ofMillis(wait));
            held.put(key, lock);
            return Outcome.acquired(new String(lock.token(), StandardCharsets.UTF_8));
        } catch (NotAcquiredException e) {
            return Outcome.BUSY;
        }
    }

    @Override
    public Boolean release(String key) {
        HeldLock was = held.remove(key);
        if (was != null) {
            was.close();
        }
        return was != null;
    }

    @Override
    public boolean renew(String key) {
        HeldLock now = held.get(key);
        if (now != null) {
            now.renew();
        }
        return now != null;
    }
}
