// Outcome.java: the result of one acquire.
package lockmigrate.holders;

public final class Outcome {
    public static final Outcome BUSY = new Outcome(false, null, null);

    final boolean acquired;
    final String value;
    final String field;

    private Outcome(boolean acquired, String value, String field) {
        this.acquired = acquired;
        this.value = value;
        this.field = field;
    }

    /** value is what the lock wrote; null where its code does not tell. */
    public static Outcome acquired(String value) {
        return new Outcome(true, value, null);
    }

    /** For locks that are hashes: the field that stands for this holder. */
    public static Outcome acquiredField(String field) {
        return new Outcome(true, null, field);
    }
}
