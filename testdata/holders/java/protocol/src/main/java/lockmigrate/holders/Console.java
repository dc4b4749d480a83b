// Console.java: the line protocol, commands on stdin and events on stdout. ../README.md describes it.
package lockmigrate.holders;

import java.util.Base64;

final class Console {
    /** After the end of the input, a command that still waits gets this long, so that no holder outlives its harness. */
    private static final long GRACE_MS = 10_000;

    private final Holder holder;
    private final Referee referee;
    private final Options options;
    private final Inbox inbox;

    Console(Holder holder, Referee referee, Options options) {
        this.holder = holder;
        this.referee = referee;
        this.options = options;
        this.inbox = new Inbox(this::leaveInTime);
    }

    void run() throws InterruptedException {
        new Event("ready").with("kind", options.kind).with("version", holder.version())
                .with("pid", ProcessHandle.current().pid()).with("id", options.id).print();
        for (Inbox.Line line = inbox.next(); line.text != null; line = inbox.next()) {
            // The limit of -1 keeps a last empty word: `parse NOW ` is the empty value.
            String[] words = line.text.split(" ", -1);
            try {
                command(line, words);
            } catch (Holder.Unsupported e) {
                new Event("unsupported").with("op", words[0]).print();
            } catch (Usage e) {
                Event.error("protocol", "usage", e.getMessage()).print();
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                Event error = Event.error(words[0], e);
                if (words.length > 1) {
                    error.with("key", words[1]);
                }
                error.print();
            }
        }
        bye();
    }

    private void command(Inbox.Line line, String[] words) throws Exception {
        switch (words[0]) {
            case "acquire":
                acquire(key(words), holder.waitMs());
                break;
            case "try":
                acquire(key(words), 0);
                break;
            case "release":
                Boolean removed = holder.release(key(words));
                new Event("released").with("key", words[1]).with("removed", removed).print();
                break;
            case "renew":
                boolean renewed = holder.renew(key(words));
                new Event(renewed ? "renewed" : "not_renewed").with("key", words[1]).print();
                break;
            case "count":
                new Event("count").with("hold", holder.count(key(words))).print();
                break;
            case "clock":
                expect(words, 2, "clock OFFSET_MS");
                holder.clock(number(words[1]));
                new Event("clock").with("offset_ms", number(words[1])).print();
                break;
            case "parse":
                expect(words, 3, "parse NOW_MS BASE64");
                parse(number(words[1]), words[2]);
                break;
            case "turns":
                expect(words, 5, "turns KEY REFEREE N HOLD_MS");
                new Turns(holder, referee, options.id, () -> inbox.stopped(line))
                        .run(words[1], words[2], number(words[3]), number(words[4]));
                break;
            default:
                throw new Usage("unknown command " + words[0]);
        }
    }

    private void acquire(String key, long waitMs) throws Exception {
        long start = System.nanoTime();
        Outcome outcome = holder.acquire(key, waitMs);
        long waited = Millis.since(start);
        Event event = new Event(outcome.acquired ? "acquired" : "busy").with("key", key).with("waited_ms", waited);
        if (outcome.acquired) {
            event.with("value", outcome.value);
        }
        if (outcome.field != null) {
            event.with("field", outcome.field);
        }
        event.print();
    }

    private void parse(long nowMs, String base64) throws Exception {
        byte[] value;
        try {
            value = Base64.getDecoder().decode(base64);
        } catch (IllegalArgumentException e) {
            throw new Usage("not base64: " + base64);
        }
        Reading reading = holder.parse(nowMs, value);
        Event event = new Event("parsed").with("reading", reading.reading).with("number", reading.number);
        if (reading.thrown != null) {
            event.with("class", reading.thrown.getClass().getName()).with("message", reading.thrown.getMessage());
        }
        event.print();
    }

    private void leaveInTime() {
        try {
            Thread.sleep(GRACE_MS + Math.max(0, holder.waitMs()));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        bye();
    }

    /** Ends without closing anything: what is held stays held, as it would in a crash. */
    private static synchronized void bye() {
        new Event("bye").print();
        Runtime.getRuntime().halt(0);
    }

    private static String key(String[] words) throws Usage {
        expect(words, 2, words[0] + " KEY");
        return words[1];
    }

    private static void expect(String[] words, int count, String usage) throws Usage {
        if (words.length != count) {
            throw new Usage("want: " + usage);
        }
    }

    private static long number(String word) throws Usage {
        try {
            return Long.parseLong(word);
        } catch (NumberFormatException e) {
            throw new Usage("not a number: " + word);
        }
    }

    private static final class Usage extends Exception {
        private static final long serialVersionUID = 1L;

        Usage(String message) {
            super(message);
        }
    }
}
