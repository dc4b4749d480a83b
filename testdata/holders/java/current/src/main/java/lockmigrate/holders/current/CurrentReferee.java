// CurrentReferee.java: the referee over a Jedis client of its own.
package lockmigrate.holders.current;

import lockmigrate.holders.Options;
import lockmigrate.holders.Referee;
import redis.clients.jedis.RedisClient;

final class CurrentReferee implements Referee {
    private final Options options;
    private RedisClient redis;

    CurrentReferee(Options options) {
        this.options = options;
    }

    @Override
    public void enter(String referee, String id, long n) {
        redis().hset(referee, id, Long.toString(n));
    }

    @Override
    public long inside(String referee) {
        return redis().hlen(referee);
    }

    @Override
    public void leave(String referee, String id) {
        redis().hdel(referee, id);
        redis().incr(referee + ":turns");
    }

    private RedisClient redis() {
        if (redis == null) {
            redis = Client.open(options);
        }
        return redis;
    }
}
