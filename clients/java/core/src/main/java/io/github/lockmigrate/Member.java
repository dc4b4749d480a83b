package io.github.lockmigrate;

import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** One process of the fleet: it reports, and hands what it is told to the gate. Only the thread that reports calls it, but for serverMicros. */
final class Member {
    private static final String[] HOPELESS = {
        "NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE", "OLDSERVER", "PROTOCOL", "unknown command", "can't run this command", "can't access"
    };

    private final String namespace, dialect, id, library;
    private final long ttl, lease, ownLease, fenceTtl;
    private final Gate gate;
    private final Wire wire;
    private final Map<String, Object> keys = new HashMap<>();
    private String user = "", misfit = "";
    private long seq, longest, boundMs, skew;
    private volatile long[] clock; // the server's microseconds, and System.nanoTime then

    private static final class Read {
        Gate.Order order;
        Terms terms;
        String problem;
    }

    Member(String namespace, String name, String dialect, long ttl, long ownLease, long fenceTtl, String client, Gate gate, Wire wire) {
        this.namespace = namespace;
        this.dialect = dialect;
        this.ttl = ttl;
        this.ownLease = ownLease;
        this.fenceTtl = fenceTtl;
        this.gate = gate;
        this.wire = wire;
        String version = Member.class.getPackage().getImplementationVersion();
        library = "java " + (version == null ? "" : version + " ") + client;
        lease = Math.min(Math.max(ttl / 2 * 3, 300 * Terms.MS), 15 * Terms.SECOND);
        keys.put("record", Raw.of("lockmigrate:{" + namespace + "}:stage"));
        keys.put("members", Raw.of("lockmigrate:{" + namespace + "}:members"));
        id = Raw.of((name.isEmpty() ? host() + "-" + pid() + "-" : name + "/") + Dialect.random().substring(8));
    }

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "unknown";
        }
    }

    private static long pid() {
        String name = ManagementFactory.getRuntimeMXBean().getName(); // pid@host: Java 8 has no other way
        try {
            return Long.parseLong(name.substring(0, name.indexOf('@')));
        } catch (NumberFormatException | StringIndexOutOfBoundsException e) {
            return 0;
        }
    }

    private String info() {
        String program = System.getProperty("sun.java.command", "java").split(" ", 2)[0];
        program = program.substring(program.lastIndexOf('/') + 1);
        return "{\"host\":" + Json.quote(host()) + ",\"pid\":" + pid() + ",\"build\":{\"program\":" + Json.quote(program) + ",\"library\":" + Json.quote(library) + "}"
                + (user.isEmpty() ? "" : ",\"user\":" + Json.quote(user)) + "}";
    }

    /** The server's clock, as the last answer told it. */
    long serverMicros() {
        long[] at = clock;
        return at == null ? System.currentTimeMillis() * 1000 : at[0] + (System.nanoTime() - at[1]) / 1000;
    }

    private void learn(long nowMs, long sent) {
        long trip = System.nanoTime() - sent;
        clock = new long[] {nowMs * 1000, sent + trip / 2};
        skew = System.currentTimeMillis() - trip / 2 / Terms.MS - nowMs;
    }

    private Wire.Reply join(long leaseMs, long notAfter, long[] says) {
        Map<String, Object> values = new HashMap<>(keys);
        values.put("id", id);
        values.put("seq", seq);
        values.put("lease", leaseMs);
        values.put("epoch", says[0]);
        values.put("stage", says[1]);
        values.put("lowest", says[2]);
        values.put("highest", says[3]);
        values.put("longest", longest / Terms.MS);
        values.put("skew", skew);
        values.put("info", Raw.of(info()));
        values.put("not_after", notAfter);
        values.put("why", Raw.of(misfit.length() > 500 ? misfit.substring(0, 500) : misfit));
        return wire.call("stage_join", values);
    }

    /** One report. It returns the nanoseconds until the next one is due. */
    long report() {
        long sent;
        if (clock == null) {
            sent = System.nanoTime();
            Wire.Reply reply = join(0, 0, new long[] {-1, -1, -1, -1});
            if (reply.failed()) {
                return unreachable(reply);
            }
            learn(reply.number(1, 0), sent);
            if (reply.code() == 0) {
                return none();
            }
            Read read = read(reply.row());
            misfit = read.problem;
            longest = read.terms == null ? 0 : read.terms.longest();
            Wire.Reply who = wire.command("ACL", "WHOAMI");
            user = who.value instanceof String ? Raw.text((String) who.value) : "";
        }
        sent = System.nanoTime();
        seq++;
        long bound = serverMicros() / 1000 + lease / Terms.MS;
        boundMs = Math.max(boundMs, bound);
        Wire.Reply reply = join(lease / Terms.MS, bound, gate.report());
        if (reply.failed()) {
            return unreachable(reply);
        }
        learn(reply.number(1, 0), sent);
        if (reply.code() == 0) {
            return none();
        }
        if (reply.code() == -2) { // the server's clock was set
            return 0;
        }
        if (reply.code() < 0) {
            String why = reply.seen().isEmpty() ? "a later report has arrived" : reply.seen();
            gate.failed("the server may have lost changes of the stage (" + why + "); it gives a lease when that is settled", why.equals("apart"), true);
            return lease / 10;
        }
        Read read = read(reply.row());
        String said = misfit;
        misfit = read.problem;
        if (!read.problem.isEmpty()) {
            if (read.order != null) {
                gate.extend(read.order.endsMs);
            }
            gate.failed(read.problem, false, false);
            return read.problem.equals(said) ? lease / 10 : 0;
        }
        if (!said.isEmpty() || read.terms.longest() > longest) { // the record must be right before anything is acquired
            longest = Math.max(longest, read.terms.longest());
            return 0;
        }
        return gate.obey(read.order, read.terms, sent + lease) ? 0 : lease / 3;
    }

    /** Says goodbye; where something may be on the server yet, the lease runs out by itself. */
    void leave() {
        if (boundMs != 0 && gate.idle()) {
            Map<String, Object> values = new HashMap<>(keys);
            values.put("id", id);
            values.put("seq", ++seq);
            values.put("not_after", boundMs);
            wire.call("stage_leave", values);
        }
    }

    private long unreachable(Wire.Reply reply) {
        boolean hopeless = false;
        StringBuilder text = new StringBuilder();
        for (Throwable e = reply.error; e != null && text.length() < 2000; e = e.getCause()) {
            text.append(text.length() == 0 ? "" : ": ").append(e.getMessage());
        }
        for (String sign : HOPELESS) {
            hopeless |= text.indexOf(sign) >= 0;
        }
        gate.failed(text.toString(), hopeless, true);
        return lease / 60;
    }

    private long none() {
        gate.failed("there is no namespace \"" + namespace + "\"; correct the name, or create it with `lockmigrate stage init`", true, true);
        return lease / 10;
    }

    /** The order, the terms by it, and why this member cannot run it. */
    private Read read(List<Object> row) {
        Read read = new Read();
        try {
            Map<?, ?> known = (Map<?, ?>) Json.parse(Raw.text((String) row.get(6)));
            List<String> patterns = new ArrayList<>();
            for (Object pattern : (List<?>) Json.parse(Raw.text((String) row.get(5)))) {
                patterns.add(Keys.unescape((String) pattern));
            }
            Stage stage = Stage.values()[Integer.parseInt(row.get(4).toString())];
            String name = (String) known.get("dialect");
            Dialect d = Objects.requireNonNull(Dialect.ALL.get(name), () -> "dialect " + name);
            Terms t = new Terms(d, ttl, fenceTtl);
            t.shortest = nanos(known, "shortest_ms", 0);
            t.lag = nanos(known, "lag_ms", t.lag);
            t.delay = nanos(known, "delay_ms", t.delay);
            t.gap = nanos(known, "yield_ms", t.gap);
            long whole = Math.max(d.resolution(), Terms.MS);
            t.lease = ownLease != 0 ? ownLease : Math.max(30 * Terms.SECOND, (t.shortest + whole - 1) / whole * whole);
            read.order = new Gate.Order(Long.parseLong(row.get(3).toString()), stage, patterns, Long.parseLong(row.get(2).toString()));
            read.terms = t;
            read.problem = !dialect.isEmpty() && !dialect.equals(name) ? "it is of dialect " + name + ", this Locker says " + dialect : t.problem();
            read.problem = read.problem.isEmpty() ? "" : "namespace " + namespace + ": " + read.problem;
        } catch (RuntimeException e) { // whatever a later version has written there
            read.problem = "the record of namespace " + namespace + " cannot be read by this version: " + e;
        }
        return read;
    }

    private static long nanos(Map<?, ?> known, String field, long otherwise) {
        Object value = known.get(field);
        double ms = value == null ? 0 : (Double) value;
        return ms == 0 ? otherwise : (long) (ms * Terms.MS);
    }
}
