// OldReferee.java: the referee over a second Jedis 1.5.2 connection.
package lockmigrate.holders.old;

import lockmigrate.holders.Options;
import lockmigrate.holders.Referee;

final class OldReferee implements Referee {
    private final Options options;
    private Connection connection;

    OldReferee(Options options) {
        this.options = options;
    }

    @Override
    public void enter(String referee, String id, long n) {
        use(jedis -> jedis.hset(referee, id, Long.toString(n)));
    }

    @Override
    public long inside(String referee) {
        return use(jedis -> jedis.hlen(referee)).longValue();
    }

    @Override
    public void leave(String referee, String id) {
        use(jedis -> jedis.hdel(referee, id));
        use(jedis -> jedis.incr(referee + ":turns"));
    }

    private <T> T use(Connection.Use<T> use) {
        if (connection == null) {
            connection = new Connection(options);
        }
        try {
            return connection.use(use);
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
