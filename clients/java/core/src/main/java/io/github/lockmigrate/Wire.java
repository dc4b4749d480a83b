package io.github.lockmigrate;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Sends commands and scripts, and says what came of them. */
final class Wire {
    private final RedisServer server;

    Wire(RedisServer server) {
        this.server = server;
    }

    /** What came of a command: a value; or a refusal by the server; or silence: it may have run. */
    static final class Reply {
        final Object value; // Long, raw String, List<Object> or null
        final RuntimeException error;
        final boolean silent;

        Reply(Object value, RuntimeException error) {
            this.value = value;
            this.error = error;
            this.silent = error != null && !(error instanceof RedisServer.ErrorReply); // whatever else it is, nobody knows whether the command ran
        }

        boolean fault() {
            return error != null && !silent;
        }

        boolean failed() {
            return error != null;
        }

        boolean says(String word) {
            return error != null && String.valueOf(error.getMessage()).contains(word);
        }

        @SuppressWarnings("unchecked")
        List<Object> row() {
            return value instanceof List ? (List<Object>) value : java.util.Collections.singletonList(value);
        }

        /** The first element, a number; -1000 where there is none. */
        long code() {
            return number(0, -1000);
        }

        /** The nth number among the elements. */
        long number(int n, long otherwise) {
            for (Object element : row()) {
                if (element instanceof Long && n-- == 0) {
                    return (Long) element;
                }
            }
            return otherwise;
        }

        /** The text among the elements, empty where there is none. */
        String seen() {
            for (Object element : row()) {
                if (element instanceof String) {
                    return (String) element;
                }
            }
            return "";
        }
    }

    Reply command(String... words) {
        try {
            return new Reply(raw(server.send(bytes(Arrays.asList(words)))), null);
        } catch (RuntimeException e) {
            return new Reply(null, e);
        }
    }

    Reply call(String name, Map<String, Object> values) {
        Script script = Script.named(name);
        List<String> words = script.words(values);
        try {
            try {
                return new Reply(raw(server.send(script(words, "EVALSHA", script.digest))), null);
            } catch (RedisServer.ErrorReply e) {
                if (!String.valueOf(e.getMessage()).startsWith("NOSCRIPT")) {
                    throw e;
                }
                return new Reply(raw(server.send(script(words, "EVAL", Raw.of(script.text)))), null);
            }
        } catch (RuntimeException e) {
            return new Reply(null, e);
        }
    }

    /** WATCH and GET of a key; if it still holds the value, MULTI, the script, EXEC. The reply is the script's; nil where the key has changed. */
    Reply transaction(String key, String value, String name, Map<String, Object> values) {
        Script script = Script.named(name);
        try (RedisServer.Conversation one = server.converse()) {
            one.send(bytes(Arrays.asList("WATCH", key)));
            if (!value.equals(raw(one.send(bytes(Arrays.asList("GET", key)))))) {
                one.send(bytes(Arrays.asList("UNWATCH")));
                return new Reply(null, null);
            }
            one.send(bytes(Arrays.asList("MULTI")));
            one.send(script(script.words(values), "EVAL", Raw.of(script.text))); // a NOSCRIPT inside MULTI would come too late
            Object done = raw(one.send(bytes(Arrays.asList("EXEC"))));
            return new Reply(done instanceof List ? ((List<?>) done).get(0) : null, null);
        } catch (RuntimeException e) {
            return new Reply(null, e);
        }
    }

    private static byte[][] script(List<String> words, String... first) {
        List<String> all = new ArrayList<>(Arrays.asList(first));
        all.addAll(words);
        return bytes(all);
    }

    private static byte[][] bytes(List<String> words) {
        return words.stream().map(Raw::bytes).toArray(byte[][]::new);
    }

    private static Object raw(Object value) {
        if (value instanceof byte[]) {
            return Raw.of((byte[]) value);
        }
        if (value instanceof List) {
            List<Object> out = new ArrayList<>();
            for (Object element : (List<?>) value) {
                out.add(raw(element));
            }
            return out;
        }
        if (value instanceof RuntimeException) {
            throw (RuntimeException) value;
        }
        return value;
    }
}
