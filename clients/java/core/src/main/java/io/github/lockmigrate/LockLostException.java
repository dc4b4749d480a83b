package io.github.lockmigrate;

/** We held the lock and do not any more, or can no longer be sure that we do. */
public class LockLostException extends LockException {
    private static final long serialVersionUID = 1;
    private final Reason reason;

    LockLostException(String message, String key, Reason reason) {
        super(message, key, null);
        this.reason = reason;
    }

    /** How it was lost. */
    public Reason reason() {
        return reason;
    }

    /** How a lock is lost. */
    public enum Reason {
        /** No renewal was confirmed before the lease was over. */
        DEADLINE,
        /** The key is not ours any more. */
        TAKEN,
        /** Another client came in after a stale DEL, or overwrote the key. */
        DISPLACED,
        /** The Locker was closed. */
        CLOSED
    }
}
