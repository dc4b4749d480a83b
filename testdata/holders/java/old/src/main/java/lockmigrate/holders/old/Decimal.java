// Decimal.java: how dialect A reads a stored value.
package lockmigrate.holders.old;

import java.nio.charset.StandardCharsets;
import lockmigrate.holders.Reading;

final class Decimal {
    private Decimal() {
    }

    /** Jedis hands a value to the lock as UTF-8 text; the comparison below is the one in jedis-lock 1.0.0. */
    static Reading read(long nowMs, byte[] value) {
        String text = new String(value, StandardCharsets.UTF_8);
        try {
            return Reading.of(Long.parseLong(text) < nowMs, Long.parseLong(text));
        } catch (RuntimeException e) {
            return Reading.thrown(e);
        }
    }
}
