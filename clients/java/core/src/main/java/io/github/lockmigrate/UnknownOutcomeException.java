package io.github.lockmigrate;

/** A command may have run, and nothing that may be asked settles it. The key may stay taken until a lease is over. */
public class UnknownOutcomeException extends LockException {
    private static final long serialVersionUID = 1;

    UnknownOutcomeException(String message, String key, Throwable cause) {
        super(message, key, cause);
    }
}
