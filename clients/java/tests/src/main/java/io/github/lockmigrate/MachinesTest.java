package io.github.lockmigrate;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.junit.Test;

/** The machines and the bytes, without a server. */
public class MachinesTest {
    private static final Object LOST = new Object(), OURS = new Object();

    /** Answers from a script, and writes down what is asked. */
    private static final class Scripted implements RedisServer {
        final Deque<Object> answers = new ArrayDeque<>();
        final List<List<String>> asked = new ArrayList<>();
        Machines.Held held;

        @Override
        public Object send(byte[]... words) {
            List<String> said = new ArrayList<>();
            for (byte[] word : words) {
                said.add(Raw.of(word));
            }
            asked.add(said);
            Object answer = answers.isEmpty() ? "none" : answers.pop();
            if (answer == LOST) {
                throw new NoAnswer("lost", null);
            }
            if (answer instanceof ErrorReply) {
                throw (ErrorReply) answer;
            }
            String text = answer == OURS ? held.value : answer instanceof String ? (String) answer : null;
            return text == null ? answer == Void.class ? null : answer : Raw.bytes(text);
        }

        @Override
        public Conversation converse() {
            throw new UnsupportedOperationException();
        }

        @Override
        public Subscription subscribe(byte[] channel, Consumer<byte[]> heard, Runnable subscribed) {
            throw new NoAnswer("no channel", null);
        }

        @Override
        public String client() {
            return "scripted";
        }
    }

    private Scripted server;

    private Machines.Outcome legacy(String dialect, Object... answers) throws Exception {
        server = new Scripted();
        server.answers.addAll(Arrays.asList(answers));
        server.held = new Machines.Held("k", new Terms(Dialect.ALL.get(dialect), 30 * Terms.SECOND, 0), Stage.LEGACY);
        return new Machines(new Wire(server), () -> 1_700_000_000_000_000L).legacyAcquire(server.held, () -> 7, System.nanoTime(), new Mailbox());
    }

    @Test
    public void lostRepliesAtLegacy() throws Exception {
        Object nil = Void.class;
        assertEquals(Machines.Verdict.ACQUIRED, legacy("jedis-ms", LOST, nil, 1L).verdict);
        assertEquals("the same value again: the lost SETNX may arrive yet", server.asked.get(0), server.asked.get(2));
        assertEquals("the bound", "7", server.asked.get(0).get(server.asked.get(0).size() - 1));
        for (String dialect : new String[] {"jedis-ms", "jedis-uuid", "sec-pid-thread"}) {
            Machines.Verdict want = dialect.equals("jedis-ms") ? Machines.Verdict.UNSURE : Machines.Verdict.ACQUIRED;
            assertEquals(dialect, want, legacy(dialect, LOST, OURS).verdict);
            assertTrue(dialect, server.held.doubt);
        }
        assertEquals(Machines.Verdict.UNSURE, legacy("jedis-ms", LOST, LOST).verdict);
        assertEquals(Machines.Verdict.BUSY, legacy("jedis-ms", LOST, "1700000060000").verdict);
        assertFalse("another holds it", server.held.doubt);
        assertEquals(Machines.Verdict.UNSURE, legacy("jedis-ms", 0L, "1600000000000", LOST, OURS).verdict);
        assertTrue(server.held.doubt);
        assertEquals(Machines.Verdict.BUSY, legacy("jedis-ms", 0L, "1600000000000", "1700000060000").verdict);
        assertFalse("what a loser wrote is not ours to delete", server.held.doubt);
    }

    private Machines.Outcome bridge(String dialect, Stage stage, Object... answers) throws Exception {
        server = new Scripted();
        server.answers.addAll(Arrays.asList(answers));
        Terms terms = new Terms(Dialect.ALL.get(dialect), 30 * Terms.SECOND, 0);
        terms.delay = Terms.MS;
        server.held = new Machines.Held("k", terms, stage);
        return new Machines(new Wire(server), () -> 0).bridgeAcquire(server.held, () -> 7, System.nanoTime(), null, new Mailbox());
    }

    private String scripts() {
        StringBuilder names = new StringBuilder();
        for (List<String> words : server.asked) {
            for (String name : new String[] {"bridge_acquire", "bridge_settle", "bridge_release"}) {
                names.append(words.get(1).equals(Script.named(name).digest) ? name.substring(7) + " " : "");
            }
        }
        return names.toString().trim();
    }

    /** A takeover settles, and so does a lock that a lost reply may have taken over; what stays unknown is given back, and said. */
    @Test
    public void lostRepliesAtBridge() throws Exception {
        List<Object> free = Arrays.asList(1L, 0L, 0L), over = Arrays.asList(2L, 0L, 0L, "1600000000000".getBytes(StandardCharsets.US_ASCII)), mine = Arrays.asList(3L, 0L, 0L, new byte[0]);
        assertEquals(Machines.Verdict.ACQUIRED, bridge("jedis-ms", Stage.BRIDGE, free).verdict);
        assertEquals("acquire", scripts());
        assertEquals(Machines.Verdict.ACQUIRED, bridge("jedis-ms", Stage.BRIDGE, over, 1L).verdict);
        assertEquals("acquire settle", scripts());
        assertEquals(Machines.Verdict.ACQUIRED, bridge("jedis-ms", Stage.BRIDGE, LOST, mine, 2L, 1L).verdict);
        assertEquals("acquire acquire settle settle", scripts());
        assertEquals(Machines.Verdict.ACQUIRED, bridge("jedis-ms", Stage.MODERN, LOST, mine).verdict);
        assertEquals(Machines.Verdict.ACQUIRED, bridge("jedis-uuid", Stage.BRIDGE, free, 1L).verdict);
        assertEquals("where a loser may win on its own value", "acquire settle", scripts());
        assertEquals(Machines.Verdict.FAILED, bridge("jedis-ms", Stage.BRIDGE, LOST, LOST, 0L).verdict);
        assertEquals("acquire acquire release", scripts());
        assertEquals(Machines.Verdict.UNSURE, bridge("jedis-ms", Stage.BRIDGE, LOST, LOST, LOST, LOST, LOST).verdict);
        RedisServer.ErrorReply late = new RedisServer.ErrorReply("STAGE it came 5 ms too late", null);
        assertEquals(Machines.Verdict.FAILED, bridge("jedis-ms", Stage.BRIDGE, late).verdict);
        assertEquals("acquire", scripts());
        assertEquals(Machines.Verdict.FAILED, bridge("jedis-ms", Stage.BRIDGE, new RedisServer.ErrorReply("OOM not allowed script: x, on @user_script:9.", null), 0L).verdict);
        assertEquals("broken off in the middle", "acquire release", scripts());
    }

    @Test
    public void namesAndPatterns() {
        for (String[] pair : new String[][] {{"orders", "{orders}:guard"}, {"{7}orders", "{7}orders:guard:"}, {"{orders}", "{orders}:guard:"}}) {
            assertEquals(pair[1], Keys.beside(pair[0], ":guard"));
        }
        assertTrue(Keys.beside("a}b", ":guard").endsWith("}a}b:guard::"));
        Object[][] cases = {
            {"lock.*", "lock.a", true}, {"lock.?", "lock.ab", false}, {"*x*", "axb", true}, {"a\\*b", "a*b", true}, {"a\\*b", "axb", false}, {"*", "", true}, {"a", "ab", false}
        };
        for (Object[] c : cases) {
            assertEquals(Arrays.toString(c), c[2], Keys.matches((String) c[0], (String) c[1]));
        }
        assertEquals("a\\*\u00ff\\?b", Keys.unescape("a\\*\\xff\\x3fb"));
    }

    @Test
    public void json() {
        Map<?, ?> read = (Map<?, ?>) Json.parse(" {\"a\": [1, \"\\u00e9\\n\", true, null], \"b\": {}, \"c\": -2.5e3} ");
        assertEquals(Arrays.asList(1.0, "\u00e9\n", true, null), read.get("a"));
        assertEquals(-2500.0, read.get("c"));
        assertEquals("a\"\u0001\\", Json.parse(Json.quote("a\"\u0001\\")));
        for (String wrong : new String[] {"", "{", "[1", "x", "\"", "{\"a\" 1}", "1 2"}) {
            assertThrows(wrong, IllegalArgumentException.class, () -> Json.parse(wrong));
        }
    }
}
