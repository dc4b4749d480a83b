package io.github.lockmigrate;

/** Where a thread that waits is woken; the latest word counts, and a grant more than a word to look. */
final class Mailbox {
    /** Look again: the key may be free, or the stage has changed. */
    static final Grant LOOK = new Grant(0, 0);

    /** Somebody handed the lock to a ticket. */
    static final class Grant {
        final long ticket, fence;

        Grant(long ticket, long fence) {
            this.ticket = ticket;
            this.fence = fence;
        }
    }

    private Grant word;

    synchronized void put(Grant grant) {
        if (word == null || grant.ticket != 0) {
            word = grant;
        }
        notifyAll();
    }

    /** Waits for so many nanoseconds; null when the time is over. */
    synchronized Grant take(long nanos) throws InterruptedException {
        long until = System.nanoTime() + Math.min(nanos, 3600 * Terms.SECOND);
        while (word == null) {
            long left = until - System.nanoTime();
            if (left <= 0) {
                return null;
            }
            wait(left / Terms.MS, (int) (left % Terms.MS));
        }
        Grant got = word;
        word = null;
        return got;
    }
}
