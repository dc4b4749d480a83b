package io.github.lockmigrate;

import java.util.function.Consumer;

/**
 * A Redis server as this library needs it. The modules {@code lockmigrate-jedis} and {@code lockmigrate-lettuce} implement it; implement it yourself for another
 * client.
 *
 * <p>Replies are {@code Long}, {@code byte[]} (also for a status such as OK), {@code List<Object>} of these, or {@code null}. An implementation bounds each command
 * by a timeout, and is safe for threads.
 */
public interface RedisServer {
    /**
     * Sends one command, once: a client that repeats what stayed without an answer hides that it may have run twice.
     *
     * @throws ErrorReply the server refused
     * @throws NoAnswer nobody knows whether the command ran
     */
    Object send(byte[]... words);

    /** A connection that nobody else uses until it is closed, for WATCH and MULTI. */
    Conversation converse();

    /**
     * Listens on a channel, on a connection of its own. It returns at once; where the connection fails, {@code heard} is not called any more.
     *
     * @param heard called with each message
     * @param subscribed called when the server has confirmed the subscription
     * @return ends the subscription
     * @throws NoAnswer there is no connection
     */
    Subscription subscribe(byte[] channel, Consumer<byte[]> heard, Runnable subscribed);

    /** What {@code lockmigrate stage} shows beside the library's version: the client's name. */
    String client();

    /** See {@link #converse}. */
    interface Conversation extends AutoCloseable {
        /** As {@link RedisServer#send}. */
        Object send(byte[]... words);

        @Override
        void close();
    }

    /** See {@link #subscribe}. */
    interface Subscription extends AutoCloseable {
        @Override
        void close();
    }

    /** The server answered with an error; the message is the server's, with its first word. */
    final class ErrorReply extends RuntimeException {
        private static final long serialVersionUID = 1;

        public ErrorReply(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** No answer came: a connection was refused or broke, or the time was over. */
    final class NoAnswer extends RuntimeException {
        private static final long serialVersionUID = 1;

        public NoAnswer(String message, Throwable cause) {
            super(message, cause);
        }
    }
}
