package io.github.lockmigrate.lettuce;

import io.github.lockmigrate.RedisServer;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * A server, or the master behind sentinels, through Lettuce 6: one connection for all commands, and one for the channel of those who wait. It has a client of its
 * own, because Lettuce sends again after a reconnect what stayed without an answer, and a lock must know of that: here a broken connection is replaced instead.
 */
public final class LettuceServer implements RedisServer, AutoCloseable {
    private final RedisClient client;
    private final RedisURI uri;
    private StatefulRedisConnection<byte[], byte[]> shared;

    private LettuceServer(RedisURI uri, ClientOptions options) {
        this.uri = uri;
        client = RedisClient.create(uri);
        client.setOptions(options.mutate().autoReconnect(false).build());
    }

    /** A server. The timeout of the URI bounds each command: set it below the lock's TTL, Lettuce's own is 60 s. */
    public static LettuceServer of(RedisURI uri) {
        return of(uri, ClientOptions.create());
    }

    /** The same with options of your own, such as those of TLS. */
    public static LettuceServer of(RedisURI uri, ClientOptions options) {
        return new LettuceServer(uri, options);
    }

    private synchronized StatefulRedisConnection<byte[], byte[]> shared() {
        if (shared == null || !shared.isOpen()) {
            shared = connect();
        }
        return shared;
    }

    private StatefulRedisConnection<byte[], byte[]> connect() {
        try {
            return client.connect(ByteArrayCodec.INSTANCE, uri);
        } catch (RuntimeException e) {
            throw new NoAnswer(e.toString(), e);
        }
    }

    @Override
    public Object send(byte[]... words) {
        return send(shared(), words);
    }

    private Object send(StatefulRedisConnection<byte[], byte[]> connection, byte[]... words) {
        CommandArgs<byte[], byte[]> args = new CommandArgs<>(ByteArrayCodec.INSTANCE);
        for (int i = 1; i < words.length; i++) {
            args.add(words[i]);
        }
        Duration timeout = uri.getTimeout();
        AsyncCommand<byte[], byte[], Object> command = new AsyncCommand<>(new Command<>(new Word(words[0]), new AnyOutput(), args));
        try {
            connection.dispatch(command);
            return await(command, timeout.isZero() ? Duration.ofMinutes(1) : timeout);
        } catch (TimeoutException e) {
            connection.closeAsync(); // it may be half dead; the next command gets another
            throw new NoAnswer("no answer within " + timeout, e);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof RedisCommandExecutionException) {
                throw new ErrorReply(e.getCause().getMessage(), e.getCause());
            }
            throw new NoAnswer(String.valueOf(e.getCause()), e.getCause());
        } catch (RuntimeException e) {
            throw new NoAnswer(e.toString(), e);
        }
    }

    /** Waits to the end also where the thread is interrupted: whoever waits for a lock notices it afterwards, and a holder must be able to give back. */
    private static <T> T await(RedisFuture<T> future, Duration timeout) throws ExecutionException, TimeoutException {
        long until = System.nanoTime() + timeout.toNanos();
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return future.get(Math.max(0, until - System.nanoTime()), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public Conversation converse() {
        StatefulRedisConnection<byte[], byte[]> own = connect();
        return new Conversation() {
            @Override
            public Object send(byte[]... words) {
                return LettuceServer.this.send(own, words);
            }

            @Override
            public void close() {
                own.close();
            }
        };
    }

    @Override
    public Subscription subscribe(byte[] channel, Consumer<byte[]> heard, Runnable subscribed) {
        StatefulRedisPubSubConnection<byte[], byte[]> own;
        try {
            own = client.connectPubSub(ByteArrayCodec.INSTANCE, uri);
        } catch (RuntimeException e) {
            throw new NoAnswer(e.toString(), e);
        }
        own.addListener(new RedisPubSubAdapter<byte[], byte[]>() {
            @Override
            public void message(byte[] from, byte[] message) {
                heard.accept(message);
            }

            @Override
            public void subscribed(byte[] to, long count) {
                subscribed.run();
            }
        });
        own.async().subscribe(channel);
        return own::close;
    }

    @Override
    public String client() {
        return "lettuce";
    }

    /** Closes the connections; close the Lockers before. */
    @Override
    public void close() {
        client.shutdown(0, 2, TimeUnit.SECONDS);
    }

    private static final class Word implements ProtocolKeyword {
        private final byte[] name;

        Word(byte[] name) {
            this.name = name;
        }

        @Override
        public byte[] getBytes() {
            return name;
        }

        /** In lower case: Lettuce has ways of its own with MULTI and EXEC, which it knows by name; here their replies are taken as they come. */
        @Override
        public String name() {
            return new String(name, java.nio.charset.StandardCharsets.US_ASCII).toLowerCase(java.util.Locale.ROOT);
        }
    }

    /** A reply of any form. */
    private static final class AnyOutput extends CommandOutput<byte[], byte[], Object> {
        private final Deque<List<Object>> open = new ArrayDeque<>(); // lists that are not full yet, the innermost first
        private final Deque<Integer> counts = new ArrayDeque<>();

        AnyOutput() {
            super(ByteArrayCodec.INSTANCE, null);
        }

        @Override
        public void set(long integer) {
            add(integer);
        }

        @Override
        public void set(ByteBuffer bytes) {
            add(bytes == null ? null : codec.decodeValue(bytes));
        }

        @Override
        public void set(double number) {
            add(number);
        }

        @Override
        public void set(boolean value) {
            add(value);
        }

        @Override
        public void multi(int count) {
            List<Object> list = count < 0 ? null : new ArrayList<>();
            if (count <= 0) {
                add(list);
                return;
            }
            put(list);
            open.push(list);
            counts.push(count);
        }

        private void put(Object value) {
            if (open.isEmpty()) {
                output = value;
            } else {
                open.peek().add(value);
            }
        }

        private void add(Object value) {
            put(value);
            while (!open.isEmpty() && open.peek().size() == counts.peek()) {
                open.pop();
                counts.pop();
            }
        }
    }
}
