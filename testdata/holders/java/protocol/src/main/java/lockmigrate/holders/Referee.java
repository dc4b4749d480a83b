// Referee.java: counts who is inside a lock, over a connection that the lock does not use.
package lockmigrate.holders;

/** A hash with one field for each holder that is inside; more than one field at a time is an overlap. */
public interface Referee {
    /** HSET referee id n. */
    void enter(String referee, String id, long n);

    /** HLEN referee. */
    long inside(String referee);

    /** HDEL referee id, INCR referee:turns. */
    void leave(String referee, String id);
}
