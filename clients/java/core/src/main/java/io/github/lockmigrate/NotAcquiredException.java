package io.github.lockmigrate;

/** Another client holds the lock, or may. Nothing of ours is on the key. */
public class NotAcquiredException extends LockException {
    private static final long serialVersionUID = 1;

    NotAcquiredException(String message, String key, Throwable cause) {
        super(message, key, cause);
    }
}
