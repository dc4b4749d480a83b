package io.github.lockmigrate;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A key as a {@link Lock}, for code that knows nothing else. It is not all that a Lock of one process is:
 *
 * <ul>
 *   <li>A lease can be lost while the thread works, and nothing stops the thread: a step that must not be done twice needs {@link HeldLock#check} or {@link
 *       HeldLock#fence}, and so {@link Locker#acquire}. {@link #unlock} throws {@link LockLostException} where it was lost.
 *   <li>It is not reentrant: a thread that holds it and asks again gets an {@link IllegalMonitorStateException}, instead of a wait for itself.
 *   <li>Each method may throw the exceptions of {@link Locker#acquire}: the server or the namespace may refuse.
 *   <li>There are no conditions.
 * </ul>
 *
 * <p>The thread that locked must unlock.
 */
public final class LockView implements Lock {
    private final Locker locker;
    private final String key;
    private final ThreadLocal<HeldLock> mine = new ThreadLocal<>();

    LockView(Locker locker, String key) {
        this.locker = locker;
        this.key = key;
    }

    private interface Ask {
        HeldLock get() throws InterruptedException;
    }

    private void take(Ask ask) throws InterruptedException {
        if (mine.get() != null) {
            throw new IllegalMonitorStateException("this thread holds " + key + " already, and the lock is not reentrant");
        }
        mine.set(ask.get());
    }

    private boolean took(Ask ask) throws InterruptedException {
        try {
            take(ask);
            return true;
        } catch (NotAcquiredException e) {
            return false;
        }
    }

    @Override
    public void lock() {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    lockInterruptibly();
                    return;
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(() -> locker.acquire(key));
    }

    /** One attempt, past all waiters; an interrupt during the settling after a takeover makes it false, and stays set. */
    @Override
    public boolean tryLock() {
        try {
            return took(() -> locker.tryAcquire(key));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return took(() -> locker.acquire(key, Duration.ofNanos(unit.toNanos(time))));
    }

    @Override
    public void unlock() {
        HeldLock held = mine.get();
        if (held == null) {
            throw new IllegalMonitorStateException("this thread does not hold " + key);
        }
        mine.remove();
        held.close();
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock on a server has no conditions");
    }
}
