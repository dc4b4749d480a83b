package io.github.lockmigrate;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * A lock that we hold, or held. Any thread may call its methods. A try statement gives it back:
 *
 * <pre>{@code
 * try (HeldLock lock = locker.acquire("lock.order.17", Duration.ofSeconds(30))) {
 *     ship();
 *     lock.check(); // throws LockLostException before the step that must not be done twice
 * }
 * }</pre>
 */
public final class HeldLock implements AutoCloseable {
    private final Locker locker;
    final Machines.Held held;
    final Gate.Permit permit;
    final Object turn = new Object(); // who talks to the server about it
    final long fence;
    volatile long until; // when it is certainly ours no more, by System.nanoTime
    volatile long due; // when the next renewal is
    volatile LockLostException lost;
    volatile boolean resting; // a release was asked for: nothing renews it any more
    volatile boolean gone;
    private Consumer<LockLostException> onLost;

    HeldLock(Locker locker, Machines.Held held, Gate.Permit permit, long until, long fence) {
        this.locker = locker;
        this.held = held;
        this.permit = permit;
        this.until = until;
        this.fence = fence;
    }

    /** The key. */
    public String key() {
        return Raw.text(held.key);
    }

    /** In which way the key is held. A lock that outlives a stage change is renewed and released in the way it was taken. */
    public Stage stage() {
        return held.stage;
    }

    /** What we wrote on the key. */
    public byte[] token() {
        return Raw.bytes(held.value);
    }

    /** Larger than every earlier holder's: a store can refuse a smaller one. 0 without {@link Locker.Builder#fenceTtl}, and at stage legacy. */
    public long fence() {
        return fence;
    }

    /** For how long the lock is certainly ours if no renewal succeeds any more. */
    public Duration remaining() {
        return lost != null || gone ? Duration.ZERO : Duration.ofNanos(Math.max(0, until - System.nanoTime()));
    }

    /** False: the lock is lost, or given back. It goes by the clock alone, so a server that is silent cannot make it wrong. */
    public boolean alive() {
        return !remaining().isZero();
    }

    /**
     * Call it before a step that must not be done twice.
     *
     * @throws LockLostException the lock is lost
     */
    public void check() {
        if (!alive()) {
            throw lost != null ? lost : new LockLostException("lock " + key() + " lost: its lease is over", key(), LockLostException.Reason.DEADLINE);
        }
    }

    /** Calls back once, on a thread of the Locker, when the lock is lost; at once, on this thread, where it is already. */
    public void onLost(Consumer<LockLostException> call) {
        synchronized (this) {
            onLost = call;
        }
        if (lost != null) {
            tell();
        }
    }

    void tell() {
        Consumer<LockLostException> call;
        synchronized (this) {
            call = onLost;
            onLost = null;
        }
        if (call != null) {
            call.accept(lost);
        }
    }

    /** Extends the lease now. The Locker renews by itself. */
    public void renew() {
        if (resting) {
            throw new LockException("the lock was released", key(), null);
        }
        locker.renew(this);
        if (lost != null) {
            throw lost;
        }
    }

    /**
     * Gives the lock back; a second call does nothing.
     *
     * @throws LockLostException it was lost before: the work may have overlapped another holder's
     * @throws UnknownOutcomeException no answer came; the Locker tries again until the lease is over
     */
    @Override
    public void close() {
        locker.release(this);
    }
}
