// BridgeHolder.java: kind `bridge`, the Java reference of the bridge scripts on the current Jedis.
package lockmigrate.holders.current;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import lockmigrate.bridge.BridgeLock;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import redis.clients.jedis.RedisClient;

/** Runs lockmigrate.bridge.BridgeLock as `lockmigrate scripts` prints it. */
final class BridgeHolder implements Holder {
    private final BridgeLock lock;
    private final long waitMs;
    private final long pollMs;
    private final Map<String, BridgeLock.Held> held = new HashMap<>();

    BridgeHolder(Options options) {
        options.without("clock");
        waitMs = options.finiteWait(10_000);
        pollMs = Math.max(1, options.poll(100));
        BridgeLock.Options bridge = new BridgeLock.Options();
        bridge.unit = "ms";
        bridge.ttlMs = options.lease(bridge.ttlMs);
        RedisClient redis = Client.open(options);
        lock = new BridgeLock(redis::eval, bridge, script("acquire"), script("settle"), script("renew"), script("release"));
    }

    private static String script(String name) {
        try (InputStream in = BridgeLock.class.getResourceAsStream("bridge_" + name + ".lua")) {
            return new String(in.readAllBytes(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public String version() {
        return "lockmigrate's Java reference, " + Client.JEDIS;
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
        long end = System.nanoTime() + wait * 1_000_000;
        while (true) {
            BridgeLock.Held got = lock.tryAcquire(key);
            if (got != null) {
                held.put(key, got);
                return Outcome.acquired(got.value);
            }
            if (System.nanoTime() >= end) {
                return Outcome.BUSY;
            }
            Thread.sleep(pollMs);
        }
    }

    @Override
    public Boolean release(String key) {
        BridgeLock.Held was = held.remove(key);
        return was != null && lock.release(was);
    }

    @Override
    public boolean renew(String key) {
        BridgeLock.Held now = held.get(key);
        return now != null && lock.renew(now);
    }
}
