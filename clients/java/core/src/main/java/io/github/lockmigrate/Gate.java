package io.github.lockmigrate;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/**
 * What stands between a Locker and its stage. An attempt's stage is chosen and counted in one step, so that a report never leaves out an attempt that has begun.
 * Nothing here knows a connection.
 */
final class Gate {
    /** Whom a change wakes. */
    enum Whom {
        EVERYBODY,
        REPORTS
    }

    /** What the record says, as the last answer told it. */
    static final class Order {
        final long epoch, endsMs; // ends: of the member's lease, on the server's clock
        final Stage stage;
        final List<String> patterns;

        Order(long epoch, Stage stage, List<String> patterns, long endsMs) {
            this.epoch = epoch;
            this.stage = stage;
            this.patterns = patterns;
            this.endsMs = endsMs;
        }

        boolean same(Order other) {
            return other != null && epoch == other.epoch && stage == other.stage;
        }
    }

    /** One attempt's, and then one lock's, right to a stage. It is counted until nothing of it can be on the server. */
    static final class Permit {
        final Order order;
        final Terms terms;
        private boolean acting = true, left;

        Permit(Order order, Terms terms) {
            this.order = order;
            this.terms = terms;
        }
    }

    /** No attempt may begin at this moment; a later one may. */
    static final class NotNow extends Exception {
        private static final long serialVersionUID = 1;

        NotNow(String why) {
            super(why, null, false, false);
        }
    }

    private final Consumer<Whom> wake;
    private Order order;
    private Terms terms;
    private boolean fixed, hopeless, closed;
    private long until = System.nanoTime() - 1; // of this member's lease
    private String why = "this member has not joined its namespace yet";
    private final int[] inUse = new int[3];
    private int acting, earlier; // attempts under way, of this order and of earlier ones
    private long before = -1; // the order of the earlier ones

    Gate(Consumer<Whom> wake) {
        this.wake = wake;
    }

    /** Throws what is in the way. */
    synchronized void open() throws NotNow {
        if (closed) {
            throw new StageException("the Locker is closed", "", null);
        }
        if (fixed) {
            return;
        }
        if (hopeless) {
            throw new StageException(why, "", null);
        }
        if (order == null) {
            throw new NotNow(why);
        }
        long late = System.nanoTime() - until;
        if (late >= 0) {
            throw new NotNow("this member could not report for " + Duration.ofNanos(late).toMillis() + " ms, its lease is over: " + (why.isEmpty() ? "no answer" : why));
        }
    }

    private boolean shut() {
        try {
            open();
            return false;
        } catch (NotNow | StageException e) {
            return true;
        }
    }

    synchronized Permit enter(String key) throws NotNow {
        open();
        if (!fixed && order.patterns.stream().noneMatch(p -> Keys.matches(p, key))) {
            throw new StageException("the key " + Raw.text(key) + " is not of the namespace: " + order.patterns, Raw.text(key), null);
        }
        inUse[order.stage.ordinal()]++;
        acting++;
        return new Permit(order, terms);
    }

    /** The last millisecond of the server's clock at which a command of this member may act. */
    synchronized long bound() {
        return fixed ? 0 : order != null ? order.endsMs : 1;
    }

    /** The same for an attempt; one of an earlier order must end. */
    synchronized long bound(Permit permit) throws Machines.Changed {
        if (shut() || !permit.order.same(order)) {
            throw new Machines.Changed();
        }
        return bound();
    }

    void acquired(Permit permit) {
        boolean tell;
        synchronized (this) {
            tell = acted(permit);
        }
        if (tell) {
            wake.accept(Whom.REPORTS);
        }
    }

    void leave(Permit permit) {
        boolean tell;
        synchronized (this) {
            if (permit.left) {
                return;
            }
            permit.left = true;
            int used = permit.order.stage.ordinal();
            inUse[used]--;
            tell = acted(permit) || inUse[used] == 0 && order != null && permit.order.stage != order.stage;
        }
        if (tell) {
            wake.accept(Whom.REPORTS);
        }
    }

    /** Whether that was the last attempt of an earlier order: the record may be waiting for it. */
    private boolean acted(Permit permit) {
        if (!permit.acting) {
            return false;
        }
        permit.acting = false;
        if (order != null && permit.order.epoch == order.epoch) {
            acting--;
            return false;
        }
        return --earlier == 0;
    }

    /** What this member runs and holds: epoch, stage, lowest, highest. While an attempt of an earlier order is under way, it runs that one. */
    synchronized long[] report() {
        long[] says = {-1, -1, -1, -1};
        for (int s = 0; s < 3; s++) {
            if (inUse[s] > 0) {
                says[2] = says[2] < 0 ? s : says[2];
                says[3] = s;
            }
        }
        if (order != null && System.nanoTime() - until < 0) {
            says[0] = earlier > 0 ? before : order.epoch;
            says[1] = order.stage.ordinal();
        }
        return says;
    }

    /** Whether the order is news. */
    boolean obey(Order told, Terms by, long lease) {
        boolean news, wasShut;
        synchronized (this) {
            news = !told.same(order);
            wasShut = shut();
            if (order != null && told.epoch != order.epoch) {
                before = earlier == 0 ? order.epoch : before;
                earlier += acting;
                acting = 0;
            }
            order = told;
            terms = by;
            until = lease;
            why = "";
            hopeless = false;
        }
        if (news || wasShut) {
            wake.accept(Whom.EVERYBODY);
        }
        return news;
    }

    /** What is held may be renewed until the end of a lease that allows nothing new. */
    synchronized void extend(long endsMs) {
        if (order != null && endsMs > order.endsMs) {
            order = new Order(order.epoch, order.stage, order.patterns, endsMs);
        }
    }

    void failed(String because, boolean gone, boolean fits) {
        synchronized (this) {
            why = because;
            hopeless = !fits || order == null && gone;
            if ((gone || !fits) && order != null && until - System.nanoTime() > 0) {
                until = System.nanoTime();
            }
        }
        wake.accept(Whom.EVERYBODY);
    }

    void fix(Stage stage, Terms by) {
        order = new Order(0, stage, java.util.Collections.emptyList(), 0);
        terms = by;
        fixed = true;
    }

    void close() {
        synchronized (this) {
            closed = true;
        }
        wake.accept(Whom.EVERYBODY);
    }

    synchronized Stage stage() {
        return order == null ? null : order.stage;
    }

    synchronized long until() {
        return until;
    }

    synchronized boolean idle() {
        return inUse[0] + inUse[1] + inUse[2] == 0;
    }
}
