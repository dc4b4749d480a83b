// Stamp.java: the value of dialect B, `uuid:ms`.
package lockmigrate.holders.old;

import java.nio.charset.StandardCharsets;
import java.util.UUID;
import lockmigrate.holders.Reading;

final class Stamp {
    /** What every value becomes that is no stamp, a missing key included: it expired in 1970. */
    private static final Stamp NONE = new Stamp(new UUID(0, 0), 0);

    private final UUID uuid;
    private final long expires;

    Stamp(UUID uuid, long expires) {
        this.uuid = uuid;
        this.expires = expires;
    }

    /** Takes the first two parts between colons; whatever goes wrong means NONE. */
    static Stamp of(String text) {
        try {
            String[] parts = text.split(":");
            return new Stamp(UUID.fromString(parts[0]), Long.parseLong(parts[1]));
        } catch (RuntimeException any) {
            return NONE;
        }
    }

    static Reading read(long nowMs, byte[] value) {
        Stamp stamp = of(new String(value, StandardCharsets.UTF_8));
        return stamp == NONE ? Reading.unparsableExpired() : Reading.of(stamp.expired(nowMs), stamp.expires);
    }

    boolean expired(long nowMs) {
        return expires < nowMs;
    }

    boolean expiredOrMine(UUID mine, long nowMs) {
        return expired(nowMs) || uuid.equals(mine);
    }

    @Override
    public String toString() {
        return uuid + ":" + expires;
    }
}
