// Holder.java: what one kind of lock can do. Adding a kind is one class that implements this.
package lockmigrate.holders;

/**
 * One kind of lock with its own connection. Every method runs on one and the same thread, because Redisson ties a
 * lock to a thread. acquire and release send exactly the commands of the lock's own code: traces of holders are
 * compared command for command. Exceptions of that code pass through; the loop prints them as events.
 */
public interface Holder {
    /** A wait without an end, for the kinds that have one. */
    long FOREVER = -1;

    /** Library names and versions, for the ready event. */
    String version();

    /** How long `acquire` waits, in ms; FOREVER where the lock blocks. */
    long waitMs();

    /** Pause between attempts, in ms. */
    long pollMs();

    Outcome acquire(String key, long waitMs) throws Exception;

    /** Whether the key was removed; null where the lock's own code does not tell. */
    Boolean release(String key) throws Exception;

    /** Whether the lock is held with a new lease. */
    default boolean renew(String key) throws Exception {
        throw new Unsupported("renew");
    }

    /**
     * For how long a key that was just acquired stays this holder's without a renewal, in ms; FOREVER where that is
     * not known. `turns` asks, and tells of a lease that had ended before the release.
     */
    default long remaining(String key) throws Exception {
        return FOREVER;
    }

    /** How many times this holder's thread holds a reentrant lock. */
    default int count(String key) throws Exception {
        throw new Unsupported("count");
    }

    /** How this lock's own expression reads a stored value at the time nowMs. */
    default Reading parse(long nowMs, byte[] value) throws Exception {
        throw new Unsupported("parse");
    }

    default void clock(long offsetMs) throws Exception {
        throw new Unsupported("clock");
    }

    /** Thrown for a command that a kind does not have; a type of our own, to tell it from what a lock throws. */
    final class Unsupported extends Exception {
        private static final long serialVersionUID = 1L;

        public Unsupported(String op) {
            super(op);
        }
    }
}
