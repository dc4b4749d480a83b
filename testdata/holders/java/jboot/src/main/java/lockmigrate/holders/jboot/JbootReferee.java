// JbootReferee.java: the referee over a Jedis connection of its own.
package lockmigrate.holders.jboot;

import java.util.function.Function;
import lockmigrate.holders.Options;
import lockmigrate.holders.Referee;
import redis.clients.jedis.Jedis;

final class JbootReferee implements Referee {
    private final Options options;
    private Jedis jedis;

    JbootReferee(Options options) {
        this.options = options;
    }

    @Override
    public void enter(String referee, String id, long n) {
        use(j -> j.hset(referee, id, Long.toString(n)));
    }

    @Override
    public long inside(String referee) {
        return use(j -> j.hlen(referee));
    }

    @Override
    public void leave(String referee, String id) {
        use(j -> j.hdel(referee, id));
        use(j -> j.incr(referee + ":turns"));
    }

    private <T> T use(Function<Jedis, T> use) {
        if (jedis == null) {
            Jedis opened = new Jedis(options.host, options.port);
            if (options.password != null) {
                opened.auth(options.password);
            }
            opened.select(options.database);
            jedis = opened;
        }
        try {
            return use.apply(jedis);
        } catch (RuntimeException e) {
            jedis.close();
            jedis = null;
            throw e;
        }
    }
}
