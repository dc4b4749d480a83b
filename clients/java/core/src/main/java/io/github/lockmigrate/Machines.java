package io.github.lockmigrate;

import java.util.HashMap;
import java.util.Map;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/** The protocols: what is sent, and what each answer means. They are those of the Go library (internal/protocol), which its explorer searches. */
final class Machines {
    private static final int MOST_SETTLES = 8;

    private final Wire wire;
    private final LongSupplier serverMicros;

    Machines(Wire wire, LongSupplier serverMicros) {
        this.wire = wire;
        this.serverMicros = serverMicros;
    }

    enum Verdict {
        ACQUIRED,
        BUSY,
        FOREIGN,
        FAILED,
        UNSURE,
        RENEWED,
        DISPLACED,
        LOST,
        RELEASED,
        NOTHING;

        /** Nothing of ours is on the server any more, as far as this release goes. */
        boolean gone() {
            return this != FAILED && this != UNSURE;
        }
    }

    /** How a machine ended. */
    static final class Outcome {
        final Verdict verdict;
        long until; // acquired, renewed: the deadline, by System.nanoTime
        long fence;
        String seen = "";
        RuntimeException error;

        Outcome(Verdict verdict) {
            this.verdict = verdict;
        }

        static Outcome until(Verdict verdict, long until, long fence) {
            Outcome o = new Outcome(verdict);
            o.until = until;
            o.fence = fence;
            return o;
        }

        static Outcome seen(Verdict verdict, String seen) {
            Outcome o = new Outcome(verdict);
            o.seen = seen;
            return o;
        }

        static Outcome error(Verdict verdict, Wire.Reply reply) {
            Outcome o = new Outcome(verdict);
            o.error = reply.error;
            return o;
        }
    }

    /** What stands on the server for a lock of ours: enough to renew it and to give it back. */
    static final class Held {
        final String key;
        final Terms terms;
        final Stage stage;
        final Map<String, Object> names;
        String value = "";
        String pending = ""; // stage legacy: what a renewal without an answer may have written
        boolean doubt; // stage legacy: value may stand on the key, and may be a twin's there that computed the same one
        long since; // when it was known to be ours; 0: it is not yet
        String entry = "", stood = ""; // ours in the queue, and the one before it

        Held(String key, Terms terms, Stage stage) {
            this.key = key;
            this.terms = terms;
            this.stage = stage;
            this.names = Keys.companions(key);
            if (stage != Stage.LEGACY) {
                value = terms.dialect.bridgeValue();
            }
        }
    }

    /** The order has changed: an attempt gives back what it has and begins anew. */
    static final class Changed extends Exception {
        private static final long serialVersionUID = 1;

        Changed() {
            super("changed", null, false, false);
        }
    }

    /** The last millisecond of the server's clock at which a command of this member may act. */
    interface Bound {
        long get() throws Changed;
    }

    /** The arguments of the bridge's scripts, by the names in their headers. */
    private static Map<String, Object> values(Held h) {
        Terms t = h.terms;
        Dialect d = t.dialect;
        Map<String, Object> v = new HashMap<>(h.names);
        v.put("value", h.value);
        v.put("ttl", Terms.ms(t.ttl));
        v.put("not_after", 0);
        v.put("fence_ttl", Terms.ms(t.fenceTtl));
        v.put("gap", Terms.ms(t.gap));
        v.put("held", 0);
        v.put("behind", 0);
        v.put("breath", d.breathMs());
        v.put("hand", 0);
        v.put("entry", h.entry);
        v.put("stood", h.stood);
        v.put("queue_ttl", 0);
        v.put("rules", (h.stage == Stage.MODERN ? -1 : Terms.ms(t.lag + t.delay)) + " " + d.unit.word + " "
                + d.layout.name().toLowerCase(java.util.Locale.ROOT) + " " + Terms.ms(t.gap));
        if (t.fenceTtl == 0) {
            v.put("fence", h.key);
        }
        if (t.gap == 0) {
            v.put("yield", h.key);
        }
        return v;
    }

    /** The release that names no key but the lock's own two: one beside them was refused. */
    private static Map<String, Object> bare(Held h, Map<String, Object> values) {
        for (String name : new String[] {"fence", "queue", "yield"}) {
            values.put(name, h.key);
        }
        for (String name : new String[] {"gap", "fence_ttl", "behind", "held"}) {
            values.put(name, 0);
        }
        values.put("entry", "");
        values.put("stood", "");
        return values;
    }

    /**
     * Takes a lock that old clients and token clients on the same key both respect; waits in its queue until then. After a takeover the lock settles: an old
     * client's GETSET may be under way. A live legacy value is never overwritten: the machine withdraws.
     *
     * @param channel says where a grant to us is heard, "-" for nowhere; null makes one attempt that takes no place in the queue
     */
    Outcome bridgeAcquire(Held h, Bound bound, long until, Supplier<String> channel, Mailbox mailbox) throws Changed, InterruptedException {
        Terms t = h.terms;
        boolean again = false, doubt = false;
        while (true) {
            long notAfter = bound.get();
            if (channel != null) {
                String entry = Terms.ms(t.claim()) + " " + notAfter + " 1 " + channel.get() + " " + h.value;
                if (!entry.equals(h.entry)) {
                    h.stood = h.entry;
                    h.entry = entry;
                }
            }
            Map<String, Object> values = values(h);
            values.put("not_after", notAfter);
            if (channel == null) {
                values.put("queue", h.key);
            } else {
                values.put("queue_ttl", Terms.ms(90 * Terms.SECOND + t.ttl));
            }
            long sent = System.nanoTime();
            Wire.Reply reply = wire.call("bridge_acquire", values);
            if (reply.silent && !again) {
                doubt = again = true;
                continue;
            }
            if (reply.failed()) {
                Outcome failed = Outcome.error(Verdict.FAILED, reply);
                return reply.silent || again || within(reply) ? drop(h, failed) : failed;
            }
            again = false;
            long code = reply.code(), second = reply.number(1, 0), wait = reply.number(2, 0), ticket = reply.number(3, 0);
            if (code > 0) {
                h.entry = h.stood = "";
                if (h.stage == Stage.MODERN || code != 2 && !t.dialect.settlesFree() && !(code == 3 && doubt)) {
                    return Outcome.until(Verdict.ACQUIRED, sent + t.ttl, second);
                }
                Outcome settled = settle(h, bound, second);
                if (settled != null) {
                    return settled;
                }
                continue;
            }
            h.stood = "";
            long left = until - System.nanoTime();
            if (left <= 0 || channel == null) {
                Outcome refused = Outcome.seen(code < 0 ? Verdict.FOREIGN : Verdict.BUSY, reply.seen());
                return h.entry.isEmpty() ? refused : drop(h, refused);
            }
            long pause = wait < 0 ? t.dialect.poll : Math.min(t.dialect.poll, wait * Terms.MS);
            if (second > 0 && !channel.get().equals("-")) {
                pause = Math.min(5 * Terms.SECOND, (wait > 0 ? wait : 5000) * Terms.MS * (second + 1));
            }
            Mailbox.Grant woken = mailbox.take(Math.min(left, Math.max(pause, Terms.MS)));
            if (woken != null && woken.ticket != 0 && woken.ticket == ticket && System.nanoTime() - sent < t.claim() / 2 && (woken.fence != 0 || t.fenceTtl == 0)) {
                h.entry = h.stood = "";
                return Outcome.until(Verdict.ACQUIRED, sent + t.claim(), woken.fence);
            }
        }
    }

    /** Waits for longer than an old client needs from its GET to its GETSET, and looks. Null: the lock is another's; go on waiting. */
    private Outcome settle(Held h, Bound bound, long fence) throws Changed, InterruptedException {
        for (int i = 0; i < MOST_SETTLES; i++) {
            java.util.concurrent.TimeUnit.NANOSECONDS.sleep(h.terms.delay);
            Wire.Reply reply = null;
            long sent = 0;
            for (int twice = 0; twice < 2 && (reply == null || reply.silent); twice++) {
                Map<String, Object> values = values(h);
                values.put("not_after", bound.get());
                sent = System.nanoTime();
                reply = wire.call("bridge_settle", values);
            }
            if (reply.failed()) {
                return drop(h, Outcome.error(Verdict.FAILED, reply));
            }
            if (reply.code() == 1) {
                return Outcome.until(Verdict.ACQUIRED, sent + h.terms.ttl, fence);
            }
            if (reply.code() != 2) {
                return null;
            }
        }
        return drop(h, new Outcome(Verdict.BUSY));
    }

    /** Gives back what may be ours; unsure where no answer comes: the caller tries again behind. */
    Outcome drop(Held h, Outcome outcome) {
        Map<String, Object> values = values(h);
        Wire.Reply reply = null;
        for (int i = 0; i < 3; i++) {
            reply = wire.call("bridge_release", values);
            if (!reply.failed()) {
                h.entry = h.stood = "";
                return outcome;
            }
            if (reply.fault()) {
                bare(h, values);
            }
        }
        return Outcome.error(Verdict.UNSURE, reply);
    }

    /** Extends the lease. A key that a stale DEL has removed is set again; another's value in our place means that the lock is lost. */
    Outcome bridgeRenew(Held h, Bound bound) throws Changed {
        Wire.Reply reply = null;
        long sent = 0;
        boolean twice = false;
        for (int i = 0; i < 2 && (reply == null || reply.silent); i++) {
            twice = i > 0;
            Map<String, Object> values = values(h);
            values.put("not_after", bound.get());
            sent = System.nanoTime();
            reply = wire.call("bridge_renew", values);
        }
        if (reply.failed()) {
            return Outcome.error(reply.silent || twice ? Verdict.UNSURE : Verdict.FAILED, reply);
        }
        if (reply.code() == 1 || reply.code() == 2) {
            return Outcome.until(Verdict.RENEWED, sent + h.terms.ttl, 0);
        }
        return Outcome.seen(reply.code() == -1 ? Verdict.DISPLACED : Verdict.LOST, reply.seen());
    }

    /** Deletes key and guard where they are ours, or hands both to the first in the queue. A displacement is told before the guard goes. */
    Outcome bridgeRelease(Held h, int behind) {
        boolean lostReply = false, bare = false;
        while (true) {
            Map<String, Object> values = values(h);
            values.put("hand", 1);
            values.put("behind", behind);
            values.put("held", h.since == 0 ? 0 : (System.nanoTime() - h.since) / Terms.MS);
            if (bare) {
                bare(h, values);
            }
            Wire.Reply reply = wire.call("bridge_release", values);
            if (reply.silent && !lostReply) {
                lostReply = true;
                continue;
            }
            if (reply.fault() && !bare) {
                bare = true;
                continue;
            }
            if (reply.failed()) {
                return Outcome.error(reply.silent || lostReply ? Verdict.UNSURE : Verdict.FAILED, reply);
            }
            if (reply.code() == -1) {
                wire.call("bridge_release", values(h));
                if (!reply.seen().isEmpty() && reply.seen().equals(h.terms.dialect.leftover)) {
                    compareDelete(h.key, reply.seen());
                }
                return Outcome.seen(Verdict.DISPLACED, reply.seen());
            }
            return new Outcome(reply.code() == 0 && !lostReply ? Verdict.NOTHING : Verdict.RELEASED);
        }
    }

    /** Whether a script was broken off in the middle: what it did before that stands. A server that takes no writes has refused the first one. */
    private static boolean within(Wire.Reply reply) {
        return reply.says("user_script") && !reply.says("READONLY") && !reply.says("NOREPLICAS") && !reply.says("MISCONF");
    }

    private Wire.Reply compareDelete(String key, String value) {
        Map<String, Object> values = new HashMap<>();
        values.put("key", key);
        values.put("value", value);
        values.put("token", value);
        return wire.call("compare_del", values);
    }

    private static Map<String, Object> write(Held h, String command, String value, Bound bound) throws Changed {
        Map<String, Object> values = new HashMap<>();
        values.put("key", h.key);
        values.put("guard", h.names.get("guard"));
        values.put("command", command);
        values.put("value", value);
        values.put("not_after", bound.get());
        return values;
    }

    /**
     * The old lock, for a member at stage legacy: SETNX; where the lease on the key is over by the server's clock, GETSET (or WATCH and MULTI), and what it replaced
     * says who won. Each write carries the bound of the member's lease and respects a bridge holder's guard.
     */
    Outcome legacyAcquire(Held h, Bound bound, long until, Mailbox mailbox) throws Changed, InterruptedException {
        Dialect d = h.terms.dialect;
        String owner = d.owner();
        while (true) {
            long sent = System.nanoTime(), ours = sent + h.terms.lease;
            h.value = d.expiry(serverMicros.getAsLong(), h.terms.lease, owner);
            Map<String, Object> call = write(h, "SETNX", h.value, bound);
            boolean doubt = false, guarded = false;
            Wire.Reply reply = null, got = null;
            for (int i = 0; i < 2; i++) {
                h.doubt = true;
                reply = wire.call("gated_write", call);
                if (reply.code() == 1) {
                    return Outcome.until(Verdict.ACQUIRED, ours, 0);
                }
                if (reply.fault() && doubt) {
                    return Outcome.error(Verdict.UNSURE, reply);
                }
                h.doubt = doubt = doubt || reply.silent;
                guarded = reply.fault() && reply.says("HELD ");
                if (reply.fault() && !guarded && !reply.says("WRONGTYPE")) {
                    return Outcome.error(Verdict.FAILED, reply);
                }
                got = wire.command("GET", h.key);
                if (!reply.silent || got.failed() || got.value != null) {
                    break; // else the lost SETNX may arrive yet: if it does, the second one finds the key taken
                }
            }
            h.doubt = doubt && (got.silent || h.value.equals(got.value));
            if (got.silent || got.fault() && !got.says("WRONGTYPE")) {
                return Outcome.error(doubt ? Verdict.UNSURE : Verdict.FAILED, got);
            }
            boolean foreign = got.fault();
            String seen = "";
            if (got.value instanceof String && !guarded) {
                seen = (String) got.value;
                if (seen.equals(h.value) && d.unique) { // a SETNX whose reply was lost
                    return Outcome.until(Verdict.ACQUIRED, ours, 0);
                }
                if (seen.equals(h.value) && doubt) {
                    return Outcome.error(Verdict.UNSURE, reply);
                }
                Boolean over = d.expired(seen, serverMicros.getAsLong());
                foreign = over == null;
                if (Boolean.TRUE.equals(over)) {
                    Outcome took = takeOver(h, seen, bound, ours);
                    if (took != null) {
                        return took;
                    }
                }
            }
            long left = until - System.nanoTime();
            if (left <= 0) {
                return Outcome.seen(foreign ? Verdict.FOREIGN : Verdict.BUSY, seen);
            }
            mailbox.take(Math.min(left, d.poll));
        }
    }

    /** Null: another was faster. */
    private Outcome takeOver(Held h, String seen, Bound bound, long until) throws Changed {
        Dialect d = h.terms.dialect;
        Wire.Reply took;
        boolean won;
        if (d.transaction) {
            h.value = "\"" + h.value + "\"";
            Map<String, Object> call = write(h, "SET", h.value, bound);
            h.doubt = true;
            took = wire.transaction(h.key, seen, "gated_write", call);
            won = took.value != null;
        } else {
            Map<String, Object> call = write(h, "GETSET", h.value, bound);
            h.doubt = true;
            took = wire.call("gated_write", call);
            won = !took.failed() && (took.value == null
                    || (d.winsOnExpired ? Boolean.TRUE.equals(d.expired((String) took.value, serverMicros.getAsLong())) : took.value.equals(seen)));
        }
        if (took.silent) {
            Wire.Reply look = wire.command("GET", h.key);
            if (look.failed() || h.value.equals(look.value)) {
                return Outcome.error(Verdict.UNSURE, took); // it ran, and what it replaced will never be known
            }
        } else if (took.fault() && !took.says("HELD ")) {
            h.doubt = false;
            return Outcome.error(Verdict.FAILED, took);
        } else if (won) {
            return Outcome.until(Verdict.ACQUIRED, until, 0);
        }
        h.doubt = false; // a loser's value on the key is not ours to delete
        return null;
    }

    /** Moves the lease by compare-and-set. After a renewal without an answer the key holds the old value or the new one: that is settled first. */
    Outcome legacyRenew(Held h, Bound bound) throws Changed {
        if (!h.pending.isEmpty()) {
            Wire.Reply reply = replace(h, h.pending, bound);
            if (reply.failed()) {
                return Outcome.error(Verdict.UNSURE, reply);
            }
            h.value = h.pending;
            h.pending = "";
        }
        long sent = System.nanoTime();
        h.pending = h.terms.dialect.expiry(serverMicros.getAsLong(), h.terms.lease, h.terms.dialect.ownerIn(h.value));
        Wire.Reply reply = replace(h, h.pending, bound);
        if (reply.silent) {
            return Outcome.error(Verdict.UNSURE, reply);
        }
        String fresh = h.pending;
        h.pending = "";
        if (reply.fault()) {
            return Outcome.error(Verdict.FAILED, reply);
        }
        if (reply.code() != 1) {
            return new Outcome(Verdict.LOST);
        }
        h.value = fresh;
        return Outcome.until(Verdict.RENEWED, sent + h.terms.lease, 0);
    }

    private Wire.Reply replace(Held h, String fresh, Bound bound) throws Changed {
        Map<String, Object> values = new HashMap<>();
        values.put("key", h.key);
        values.put("old", h.value);
        values.put("value", fresh);
        values.put("not_after", bound.get());
        return wire.call("gated_compare_set", values);
    }

    /** Compare-and-delete, so that it never deletes a successor's key. The older of two values that may stand there is asked for first. */
    Outcome legacyRelease(Held h) {
        boolean doubt = false;
        for (String value : new String[] {h.value, h.pending}) {
            if (value.isEmpty()) {
                continue;
            }
            Wire.Reply reply = compareDelete(h.key, value);
            if (reply.silent) {
                doubt = true;
                reply = compareDelete(h.key, value);
            }
            if (reply.failed()) {
                return Outcome.error(doubt ? Verdict.UNSURE : Verdict.FAILED, reply);
            }
            if (reply.code() == 1) {
                return new Outcome(Verdict.RELEASED);
            }
        }
        return new Outcome(doubt ? Verdict.RELEASED : Verdict.NOTHING);
    }
}
