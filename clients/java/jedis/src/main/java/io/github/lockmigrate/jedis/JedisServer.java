package io.github.lockmigrate.jedis;

import io.github.lockmigrate.RedisServer;
import java.util.Arrays;
import java.util.function.Consumer;
import java.util.function.Supplier;
import redis.clients.jedis.BinaryJedisPubSub;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A server through a pool of Jedis, of version 3.1 to 6: {@code JedisServer.of(pool::getResource)} with a {@code JedisPool} or a {@code JedisSentinelPool}. With a
 * {@code JedisPooled} of Jedis 4 or later: {@code JedisServer.of(() -> new Jedis(pooled.getPool().getResource()))}.
 *
 * <p>Give the pool a timeout below the lock's TTL, and a pool of its own to the Locker: where the service's work has taken all connections, renewals would wait.
 * While a thread waits for a lock, one connection of the pool is subscribed to a channel.
 */
public final class JedisServer implements RedisServer {
    private final Supplier<Jedis> pool;

    private JedisServer(Supplier<Jedis> pool) {
        this.pool = pool;
    }

    /** A server whose connections the pool lends; {@code close} of each gives it back. */
    public static JedisServer of(Supplier<Jedis> pool) {
        return new JedisServer(pool);
    }

    @Override
    public Object send(byte[]... words) {
        try (Conversation one = converse()) {
            return one.send(words);
        }
    }

    @Override
    public Conversation converse() {
        Jedis jedis = borrow();
        return new Conversation() {
            @Override
            public Object send(byte[]... words) {
                try {
                    return jedis.sendCommand(() -> words[0], Arrays.copyOfRange(words, 1, words.length));
                } catch (JedisDataException e) {
                    throw new ErrorReply(e.getMessage(), e);
                } catch (RuntimeException e) {
                    throw new NoAnswer(e.toString(), e);
                }
            }

            @Override
            public void close() {
                giveBack(jedis);
            }
        };
    }

    private Jedis borrow() {
        try {
            return pool.get();
        } catch (RuntimeException e) {
            throw new NoAnswer(e.toString(), e);
        }
    }

    private static void giveBack(Jedis jedis) {
        try {
            jedis.close();
        } catch (JedisException e) {
            // the connection was broken, or the pool is closed
        }
    }

    @Override
    public Subscription subscribe(byte[] channel, Consumer<byte[]> heard, Runnable subscribed) {
        Jedis jedis = borrow();
        BinaryJedisPubSub ear = new BinaryJedisPubSub() {
            @Override
            public void onMessage(byte[] from, byte[] message) {
                heard.accept(message);
            }

            @Override
            public void onSubscribe(byte[] to, int count) {
                subscribed.run();
            }

            // From Jedis 5 on these methods come from a class of a type parameter: they are called by these names, and a class that was compiled
            // against an older Jedis has no bridges to the ones above.
            public void onMessage(Object from, Object message) {
                onMessage((byte[]) from, (byte[]) message);
            }

            public void onSubscribe(Object to, int count) {
                onSubscribe((byte[]) to, count);
            }
        };
        Thread thread = new Thread(() -> {
            try {
                jedis.subscribe(ear, channel);
            } catch (RuntimeException e) {
                // the Locker notices that nothing is heard any more
            } finally {
                giveBack(jedis);
            }
        }, "lockmigrate-subscribed");
        thread.setDaemon(true);
        thread.start();
        return () -> {
            try {
                jedis.disconnect();
            } catch (RuntimeException e) {
                // it was broken
            }
        };
    }

    @Override
    public String client() {
        return "jedis";
    }
}
