// Turns.java: the `turns` command, N times acquire, enter, hold, leave, release.
package lockmigrate.holders;

import java.util.function.BooleanSupplier;

final class Turns {
    /** A blocking acquire is cut into slices of this length, so that `stop` is heard. */
    private static final long SLICE_MS = 1000;
    /** A referee's field that stays behind would look like an overlap for ever; so leaving is tried again. */
    private static final int LEAVE_TRIES = 50;

    private final Holder holder;
    private final Referee referee;
    private final String id;
    private final BooleanSupplier stopped;

    private long busy;
    private long errors;

    Turns(Holder holder, Referee referee, String id, BooleanSupplier stopped) {
        this.holder = holder;
        this.referee = referee;
        this.id = id;
        this.stopped = stopped;
    }

    void run(String key, String counter, long turns, long holdMs) throws InterruptedException {
        long done = 0;
        long overlaps = 0;
        while (done < turns && !stopped.getAsBoolean()) {
            long start = System.nanoTime();
            if (!acquire(key)) {
                break;
            }
            long waited = Millis.since(start);
            done++;
            Lease lease = new Lease(key);
            long inside = inside(counter, done, holdMs);
            if (inside > 1) {
                overlaps++;
            }
            release(key, lease);
            lease.in(new Event("turn").with("key", key).with("n", done).with("inside", inside)
                    .with("waited_ms", waited)).print();
        }
        new Event("done").with("turns", done).with("overlaps", overlaps).with("errors", errors).with("busy", busy)
                .print();
    }

    /** Tries until acquired; false when stopped before that. */
    private boolean acquire(String key) throws InterruptedException {
        long wait = holder.waitMs() == Holder.FOREVER ? SLICE_MS : holder.waitMs();
        while (!stopped.getAsBoolean()) {
            long start = System.nanoTime();
            try {
                if (holder.acquire(key, wait).acquired) {
                    return true;
                }
                busy++;
            } catch (Exception e) {
                failed("acquire", key, e);
            }
            // An attempt that waited by itself is repeated at once, a shorter one only after a whole poll.
            Thread.sleep(Math.max(0, holder.pollMs() - Millis.since(start)));
        }
        return false;
    }

    private long inside(String counter, long n, long holdMs) throws InterruptedException {
        long inside = 0;
        try {
            referee.enter(counter, id, n);
            new Event("entered").with("n", n).print();
            inside = referee.inside(counter);
        } catch (RuntimeException e) {
            failed("referee", counter, e);
        }
        Thread.sleep(holdMs);
        for (int i = 0; i < LEAVE_TRIES; i++) {
            try {
                referee.leave(counter, id);
                break;
            } catch (RuntimeException e) {
                failed("referee", counter, e);
                Thread.sleep(Math.max(10, holder.pollMs()));
            }
        }
        return inside;
    }

    private void release(String key, Lease lease) throws InterruptedException {
        try {
            holder.release(key);
        } catch (Exception e) {
            lease.lost = true;
            lease.in(failure("release", key, e)).print();
            Thread.sleep(holder.pollMs());
        }
    }

    private void failed(String op, String key, Exception e) {
        failure(op, key, e).print();
    }

    private Event failure(String op, String key, Exception e) {
        errors++;
        return Event.error(op, e).with("key", key);
    }

    /** From when and until when the lock was this holder's, in microseconds of the host's clock. */
    private final class Lease {
        private final long began = now();
        private final long until;
        private boolean lost;

        private Lease(String key) {
            long remaining = Holder.FOREVER;
            try {
                remaining = holder.remaining(key);
            } catch (Exception e) {
                failed("remaining", key, e);
            }
            until = remaining == Holder.FOREVER ? Long.MAX_VALUE : began + remaining * 1000;
        }

        private Event in(Event event) {
            if (until == Long.MAX_VALUE) {
                return event;
            }
            long ended = now();
            return event.with("began", began).with("until", until).with("ended", ended).with("lost", lost)
                    .with("late", ended > until);
        }

        private long now() {
            return System.currentTimeMillis() * 1000;
        }
    }
}
