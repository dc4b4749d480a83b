// Client.java: the current Jedis client for one server.
package lockmigrate.holders.current;

import lockmigrate.holders.Artifact;
import lockmigrate.holders.Options;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;

final class Client {
    static final String JEDIS = Artifact.named("redis.clients", "jedis");

    private Client() {
    }

    /**
     * A pool of one connection, opened at once so that the first acquire is not slower than the others. The library
     * replaces it when it breaks.
     */
    static RedisClient open(Options options) {
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(1);
        RedisClient client = RedisClient.builder()
                .hostAndPort(new HostAndPort(options.host, options.port))
                .clientConfig(DefaultJedisClientConfig.builder().user(options.user).password(options.password)
                        .database(options.database).build())
                .poolConfig(pool)
                .build();
        client.getPool().getResource().close();
        return client;
    }
}
