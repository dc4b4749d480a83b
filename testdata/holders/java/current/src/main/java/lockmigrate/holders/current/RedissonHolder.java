// RedissonHolder.java: kind `redisson`, Redisson's own RLock, unmodified (t5).
package lockmigrate.holders.current;

import java.util.concurrent.TimeUnit;
import lockmigrate.holders.Artifact;
import lockmigrate.holders.Holder;
import lockmigrate.holders.Options;
import lockmigrate.holders.Outcome;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.ClusterServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SentinelServersConfig;

/** Without a lease (lease=0), Redisson's watchdog renews every 10 s; without a wait, lock() blocks for ever. */
final class RedissonHolder implements Holder {
    private final RedissonClient redisson;
    private final long leaseMs;
    private final long waitMs;

    RedissonHolder(Options options) {
        options.without("clock", "poll");
        leaseMs = options.lease(0);
        waitMs = options.waitOrForever();
        redisson = Redisson.create(config(options));
    }

    @Override
    public String version() {
        return Artifact.named("org.redisson", "redisson");
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
    public Outcome acquire(String key, long wait) throws InterruptedException {
        RLock lock = redisson.getLock(key);
        if (wait == FOREVER && leaseMs > 0) {
            lock.lock(leaseMs, TimeUnit.MILLISECONDS);
        } else if (wait == FOREVER) {
            lock.lock();
        } else if (!lock.tryLock(wait, leaseMs > 0 ? leaseMs : -1, TimeUnit.MILLISECONDS)) {
            return Outcome.BUSY;
        }
        return Outcome.acquiredField(redisson.getId() + ":" + Thread.currentThread().getId());
    }

    @Override
    public Boolean release(String key) {
        redisson.getLock(key).unlock();
        return null;
    }

    /** Redisson renews no lease that was given to it. */
    @Override
    public long remaining(String key) {
        return leaseMs > 0 ? Math.max(0, redisson.getLock(key).remainTimeToLive()) : FOREVER;
    }

    @Override
    public int count(String key) {
        return redisson.getLock(key).getHoldCount();
    }

    /** Redisson's defaults, but few threads and connections: many holders share one small machine. */
    private static Config config(Options options) {
        Config config = new Config();
        config.setThreads(2);
        config.setNettyThreads(2);
        if (!options.cluster().isEmpty()) {
            ClusterServersConfig cluster = config.useClusterServers().setScanInterval(1000);
            options.cluster().forEach(node -> cluster.addNodeAddress("redis://" + node));
            few(cluster);
        } else if (!options.sentinels().isEmpty()) {
            SentinelServersConfig sentinels = config.useSentinelServers().setScanInterval(1000)
                    .setMasterName(options.master()).setDatabase(options.database);
            options.sentinels().forEach(sentinel -> sentinels.addSentinelAddress("redis://" + sentinel));
            few(sentinels);
        } else {
            config.useSingleServer()
                    .setAddress("redis://" + options.host + ":" + options.port)
                    .setDatabase(options.database)
                    .setConnectionMinimumIdleSize(1)
                    .setConnectionPoolSize(4)
                    .setSubscriptionConnectionMinimumIdleSize(1)
                    .setSubscriptionConnectionPoolSize(4)
                    .setDnsMonitoringInterval(-1);
        }
        if (options.password != null) {
            config.setUsername(options.user).setPassword(options.password);
        }
        return config;
    }

    private static void few(BaseMasterSlaveServersConfig<?> config) {
        config.setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(4)
                .setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(4)
                .setSubscriptionConnectionMinimumIdleSize(1).setSubscriptionConnectionPoolSize(4)
                .setDnsMonitoringInterval(-1);
    }
}
