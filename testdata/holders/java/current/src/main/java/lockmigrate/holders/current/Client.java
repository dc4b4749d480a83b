// Client.java: the current Jedis client, for one server, a cluster, or what sentinels watch over.
package lockmigrate.holders.current;

import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import lockmigrate.holders.Artifact;
import lockmigrate.holders.Options;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.UnifiedJedis;

final class Client {
    static final String JEDIS = Artifact.named("redis.clients", "jedis");

    private Client() {
    }

    /**
     * A pool of one connection, opened at once so that the first acquire is not slower than the others. The library
     * replaces it when it breaks.
     */
    static RedisClient open(Options options) {
        return open(options, 1);
    }

    /** The same with more connections. */
    static RedisClient open(Options options, int connections) {
        options.without("cluster", "sentinels");
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(connections);
        RedisClient client = RedisClient.builder()
                .hostAndPort(new HostAndPort(options.host, options.port))
                .clientConfig(DefaultJedisClientConfig.builder().user(options.user).password(options.password)
                        .database(options.database).build())
                .poolConfig(pool)
                .build();
        client.getPool().getResource().close();
        return client;
    }

    /** The client for what the options name: the nodes of a cluster, sentinels, or one server. */
    static UnifiedJedis openAny(Options options) {
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().user(options.user)
                .password(options.password).build();
        UnifiedJedis client;
        if (!options.cluster().isEmpty()) {
            client = RedisClusterClient.builder().nodes(addresses(options.cluster())).clientConfig(config).build();
        } else if (!options.sentinels().isEmpty()) {
            client = RedisSentinelClient.builder().masterName(options.master())
                    .sentinels(addresses(options.sentinels())).clientConfig(config).build();
        } else {
            return open(options);
        }
        client.get("opened at once"); // so that the first acquire is not slower than the others
        return client;
    }

    private static Set<HostAndPort> addresses(List<String> nodes) {
        return nodes.stream().map(HostAndPort::from).collect(Collectors.toSet());
    }
}
