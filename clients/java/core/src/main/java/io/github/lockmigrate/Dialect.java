package io.github.lockmigrate;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/**
 * How one family of old clients writes and reads an expiry: the table is that of the Go library. Values are raw strings, instants of the server's clock are
 * microseconds since the epoch.
 */
final class Dialect {
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final long BRIDGE_LOW = 5_000_000_000_000_000_000L, BRIDGE_HIGH = 9_200_000_000_000_000_000L;
    private static final double EARLIEST_MS = 1e12; // September 2001: an earlier number is no expiry
    private static final double CENTURY_MS = 32e11;

    static final Map<String, Dialect> ALL;

    static {
        Map<String, Dialect> all = new LinkedHashMap<>();
        for (Dialect d : new Dialect[] {
            new Dialect("jedis-ms", Unit.MS, 1, Layout.PLAIN),
            new Dialect("jedis-uuid", Unit.MS, 1, Layout.UUID).missingIsExpired().mineExpires().unique(),
            new Dialect("redispy-float", Unit.FLOAT, 0, Layout.PLAIN).winsOnExpired().missingIsExpired().leftover("2147483649.0"),
            new Dialect("redis-doc", Unit.S, 1, Layout.PLAIN).winsOnExpired().atOrBefore(),
            new Dialect("redis-objects", Unit.FLOAT, 1, Layout.PLAIN).winsOnExpired().missingIsExpired(),
            new Dialect("sec-pid-thread", Unit.S, 1, Layout.DASH).missingIsExpired().unique().poll(1000),
            new Dialect("servicestack", Unit.MS, 1, Layout.QUOTED).atOrBefore().transaction(),
            new Dialect("unix-ns", Unit.NS, 0, Layout.PLAIN).winsOnExpired(),
            new Dialect("jboot", Unit.MS, 1, Layout.FST)
        }) {
            all.put(d.name, d);
        }
        ALL = Collections.unmodifiableMap(all);
    }

    enum Unit {
        MS("ms", 1_000),
        S("s", 1_000_000),
        FLOAT("float", 1),
        NS("ns", 1);

        final String word;
        final long micros; // how coarse a value is; ns: of what the clock here tells

        Unit(String word, long micros) {
            this.word = word;
            this.micros = micros;
        }
    }

    enum Layout {
        PLAIN,
        UUID,
        DASH,
        QUOTED,
        FST
    }

    final String name;
    final Unit unit;
    final Layout layout;
    private final int extra; // units that the writer adds to now + lease
    boolean winsOnExpired; // after GETSET: the old value is expired; else it is what GET returned
    boolean missingIsExpired; // what a reader makes of a key that is not there
    boolean atOrBefore; // expired means value <= now
    boolean mineExpires; // a client takes its own value for expired
    boolean transaction; // takes over by WATCH and MULTI, and writes the value in double quotes
    boolean unique; // no two clients write one value
    String leftover = ""; // a value that a holder deletes in its own place: a loser's that never expires
    long poll = Duration.ofMillis(100).toNanos();

    private Dialect(String name, Unit unit, int extra, Layout layout) {
        this.name = name;
        this.unit = unit;
        this.extra = extra;
        this.layout = layout;
    }

    private Dialect winsOnExpired() {
        winsOnExpired = true;
        return this;
    }

    private Dialect missingIsExpired() {
        missingIsExpired = true;
        return this;
    }

    private Dialect atOrBefore() {
        atOrBefore = true;
        return this;
    }

    private Dialect mineExpires() {
        mineExpires = true;
        return this;
    }

    private Dialect transaction() {
        transaction = true;
        return this;
    }

    private Dialect unique() {
        unique = true;
        return this;
    }

    private Dialect leftover(String value) {
        leftover = value;
        return this;
    }

    private Dialect poll(long ms) {
        poll = Duration.ofMillis(ms).toNanos();
        return this;
    }

    boolean settlesFree() {
        return mineExpires && missingIsExpired;
    }

    int breathMs() {
        return missingIsExpired && !settlesFree() ? 5 : 0;
    }

    long resolution() {
        return unit == Unit.S ? 1_000_000_000L : unit == Unit.MS ? 1_000_000L : 1;
    }

    /** Who writes: unique, because a process and thread are not, beside containers. */
    String owner() {
        String id = java.util.UUID.randomUUID().toString();
        return layout == Layout.UUID ? id : layout == Layout.DASH ? id.substring(0, 8) + "-lockmigrate" : "";
    }

    private String join(String number, String owner) {
        switch (layout) {
            case UUID:
                return owner + ":" + number;
            case DASH:
                return number + "-" + owner;
            case FST:
                return "\u00f6\u0082" + Raw.of(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(Long.parseLong(number)).array());
            default:
                return number;
        }
    }

    /** What a client whose clock reads now writes for a lease of so many nanoseconds. */
    String expiry(long nowMicros, long lease, String owner) {
        if (unit == Unit.NS) {
            return join(Long.toString(nowMicros * 1000 + lease + extra), owner);
        }
        long step = unit.micros;
        long n = nowMicros / step + (lease / 1000 + step - 1) / step;
        if (unit == Unit.FLOAT) {
            n += extra * 1_000_000L;
            return join(String.format(java.util.Locale.ROOT, "%d.%06d", n / 1_000_000, n % 1_000_000), owner);
        }
        return join(Long.toString(n + extra), owner);
    }

    /** A number that every old reader takes for an expiry that never comes, and that nobody guesses. */
    String bridgeValue() {
        long n;
        do {
            n = RANDOM.nextLong() >>> 1;
        } while (n < BRIDGE_LOW || n >= BRIDGE_HIGH);
        return join(Long.toString(n), owner());
    }

    /** Who wrote an old value of layout uuid, for its renewal. */
    String ownerIn(String value) {
        return layout == Layout.UUID && !number(value).isEmpty() ? value.substring(0, value.indexOf(':')) : owner();
    }

    /**
     * Whether an old client whose clock reads now would take the value over; null where it is not wholly of this dialect, which counts as held. It is as strict as
     * the server's scripts are: stricter than any client.
     */
    Boolean expired(String value, long nowMicros) {
        String number = number(value);
        int point = number.indexOf('.');
        String head = point < 0 ? number : number.substring(0, point), tail = point < 0 ? "" : number.substring(point + 1);
        if (number.length() > 32 || !digits(head) || point >= 0 && (unit != Unit.FLOAT || !tail.isEmpty() && !digits(tail))) {
            return null;
        }
        double n = Double.parseDouble(number), nowMs = nowMicros / 1000.0;
        double ms = unit == Unit.MS ? n : unit == Unit.NS ? n / 1e6 : n * 1000;
        if (ms < EARLIEST_MS || ms > nowMs + CENTURY_MS && ms < BRIDGE_LOW) {
            return null;
        }
        if (unit == Unit.S || unit == Unit.MS) {
            nowMs = nowMicros / unit.micros * unit.micros / 1000.0;
        }
        return ms < nowMs || atOrBefore && ms == nowMs;
    }

    private String number(String value) {
        if (layout == Layout.FST) {
            return value.length() == 10 && value.startsWith("\u00f6\u0082")
                    ? Long.toUnsignedString(ByteBuffer.wrap(Raw.bytes(value), 2, 8).order(ByteOrder.LITTLE_ENDIAN).getLong()) : "";
        }
        switch (layout) {
            case UUID:
                int colon = value.indexOf(':');
                return colon > 0 && value.substring(0, colon).matches("[0-9a-fA-F]+(-[0-9a-fA-F]+){4}") ? value.substring(colon + 1) : "";
            case DASH:
                String[] parts = value.split("-", 3);
                return parts.length == 3 && !parts[1].isEmpty() && !parts[2].isEmpty() ? parts[0] : "";
            case QUOTED:
                return value.length() >= 2 && value.startsWith("\"") && value.endsWith("\"") ? value.substring(1, value.length() - 1) : value;
            default:
                return value;
        }
    }

    private static boolean digits(String text) {
        return !text.isEmpty() && text.chars().allMatch(c -> c >= '0' && c <= '9');
    }

    /** A number for names that must not collide. */
    static String random() {
        return Long.toHexString(ThreadLocalRandom.current().nextLong() | Long.MIN_VALUE);
    }
}
