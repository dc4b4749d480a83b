package io.github.lockmigrate;

/** The key holds a value that is not of the fleet's dialect. It counts as held and is never taken over. */
public class ForeignFormatException extends NotAcquiredException {
    private static final long serialVersionUID = 1;
    private final byte[] value;

    ForeignFormatException(String message, String key, byte[] value) {
        super(message, key, null);
        this.value = value;
    }

    /** What stands on the key; empty where it is no string. */
    public byte[] value() {
        return value.clone();
    }
}
