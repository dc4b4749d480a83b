// Millis.java: elapsed time on the monotonic clock, which no clock hook or faked wall clock moves.
package lockmigrate.holders;

final class Millis {
    private Millis() {
    }

    static long since(long nanoTime) {
        return (System.nanoTime() - nanoTime) / 1_000_000;
    }
}
