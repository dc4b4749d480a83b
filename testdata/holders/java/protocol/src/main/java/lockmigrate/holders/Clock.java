// Clock.java: the wall clock with an offset, for locks whose code is ours and can be given a clock.
package lockmigrate.holders;

public final class Clock {
    private volatile long offsetMs;

    public Clock(long offsetMs) {
        this.offsetMs = offsetMs;
    }

    public long now() {
        return System.currentTimeMillis() + offsetMs;
    }

    public void offset(long ms) {
        this.offsetMs = ms;
    }
}
