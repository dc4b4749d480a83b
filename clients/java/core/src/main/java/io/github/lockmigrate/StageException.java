package io.github.lockmigrate;

/** The namespace does not allow it: there is none, this member's lease is over, or its options do not fit the record. */
public class StageException extends LockException {
    private static final long serialVersionUID = 1;

    StageException(String message, String key, Throwable cause) {
        super(message, key, cause);
    }
}
