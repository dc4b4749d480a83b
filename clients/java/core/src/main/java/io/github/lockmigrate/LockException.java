package io.github.lockmigrate;

/** The root of this library's exceptions. The cause is the server's or the connection's error behind it. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String key;

    LockException(String message, String key, Throwable cause) {
        super(message, cause);
        this.key = key;
    }

    /** The lock's key; empty where it is about the member itself. */
    public String key() {
        return key;
    }
}
