package io.github.lockmigrate;

import java.time.Duration;

/** What a member lives by: the record's figures and the service's TTL, in nanoseconds. */
final class Terms {
    static final long SECOND = 1_000_000_000L, MS = 1_000_000L;

    final Dialect dialect;
    final long ttl, fenceTtl;
    long shortest = 10 * SECOND, lag = SECOND, delay = SECOND / 4, gap, lease = 30 * SECOND;

    Terms(Dialect dialect, long ttl, long fenceTtl) {
        this.dialect = dialect;
        this.ttl = ttl;
        this.fenceTtl = fenceTtl;
        this.gap = Math.min(dialect.poll / 5 * 6, 20 * SECOND);
    }

    long renew() {
        long every = Math.min(Math.min(ttl, shortest) / 3, (shortest - delay) / 2);
        return Math.max(dialect.settlesFree() ? Math.min(every, dialect.poll / 2) : every, MS);
    }

    long claim() {
        return Math.max(Math.min(Math.min(3 * SECOND, ttl / 3), (shortest - delay) / 2), MS);
    }

    /** For how long a lock can outlive its last renewal, whatever stage it is of. */
    long longest() {
        return Math.max(ttl, lease + 2 * dialect.resolution());
    }

    /** Why the bridge is not safe by these figures; empty where it is. */
    String problem() {
        if (lease < shortest) {
            return "lease " + text(lease) + " is shorter than the record's shortest lease " + text(shortest) + ", on which the other members rely";
        }
        if (renew() + delay >= shortest) {
            return "shortest lease " + text(shortest) + ": too short to renew within it, every " + text(renew()) + ", beside a command delay of " + text(delay);
        }
        if (2 * delay >= shortest || delay >= ttl) {
            return "command delay " + text(delay) + ": must be less than half of the shortest lease " + text(shortest) + ", and less than ttl " + text(ttl);
        }
        return fenceTtl != 0 && fenceTtl < 2 * ttl ? "fenceTtl " + text(fenceTtl) + ": must be at least twice ttl " + text(ttl) : "";
    }

    /** Whole milliseconds, rounded up: less of a grace would take a live value for expired. */
    static long ms(long nanos) {
        return (nanos + MS - 1) / MS;
    }

    private static String text(long nanos) {
        return Duration.ofNanos(nanos).toString().substring(2).toLowerCase(java.util.Locale.ROOT);
    }
}
