// Connection.java: one Jedis 1.5.2 connection that is dropped after an error and opened again before the next use.
package lockmigrate.holders.old;

import lockmigrate.holders.Artifact;
import lockmigrate.holders.Options;
import redis.clients.jedis.Jedis;

/**
 * Does what a fleet's pool does with a broken connection. Without it, Jedis 1.5.2 would go on using a socket after a
 * timeout, and take the late reply for the answer to its next command.
 */
final class Connection {
    static final String JEDIS = Artifact.named("redis.clients", "jedis");

    private final Options options;
    private final Jedis jedis;

    interface Use<T> {
        T with(Jedis jedis) throws Exception;
    }

    Connection(Options options) {
        if (options.user != null && !options.user.equals("default")) {
            throw new IllegalArgumentException(JEDIS + " knows no users; use redis://:password@host:port/db");
        }
        options.without("cluster", "sentinels"); // this Jedis knows neither
        this.options = options;
        this.jedis = new Jedis(options.host, options.port);
        open();
    }

    <T> T use(Use<T> use) throws Exception {
        if (!jedis.isConnected()) {
            open();
        }
        try {
            return use.with(jedis);
        } catch (Exception e) {
            if (e.getClass().getName().startsWith("redis.clients.")) {
                drop();
            }
            throw e;
        }
    }

    private void open() {
        jedis.connect();
        if (options.password != null) {
            jedis.auth(options.password);
        }
        if (options.database != 0) {
            jedis.select(options.database);
        }
    }

    private void drop() {
        try {
            jedis.disconnect();
        } catch (RuntimeException e) {
            System.err.println("holder: disconnect: " + e);
        }
    }
}
