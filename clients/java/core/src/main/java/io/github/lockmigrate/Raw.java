package io.github.lockmigrate;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static java.nio.charset.StandardCharsets.UTF_8;

/** Keys and values are bytes. Here they are strings in which each char is one byte, so that they can be compared and be keys of maps. */
final class Raw {
    private Raw() {}

    static String of(byte[] bytes) {
        return new String(bytes, ISO_8859_1);
    }

    static String of(String text) {
        return of(text.getBytes(UTF_8));
    }

    static byte[] bytes(String raw) {
        return raw.getBytes(ISO_8859_1);
    }

    /** For people. */
    static String text(String raw) {
        return new String(bytes(raw), UTF_8);
    }
}
