// Reading.java: how a lock's own code takes a stored value.
package lockmigrate.holders;

public final class Reading {
    final String reading;
    final String number;
    final Throwable thrown;

    private Reading(String reading, String number, Throwable thrown) {
        this.reading = reading;
        this.number = number;
        this.thrown = thrown;
    }

    public static Reading of(boolean expired, long number) {
        return new Reading(expired ? "expired" : "live", Long.toString(number), null);
    }

    /** The code caught its own parse error and goes on as if the value had expired. */
    public static Reading unparsableExpired() {
        return new Reading("unparsable-expired", null, null);
    }

    public static Reading thrown(Throwable thrown) {
        return new Reading("throws", null, thrown);
    }
}
