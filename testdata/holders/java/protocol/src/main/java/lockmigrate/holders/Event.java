// Event.java: one line of output, a JSON object.
package lockmigrate.holders;

import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** Lines are written whole and unbuffered, so that a holder killed at any moment has said all that it did. */
final class Event {
    private static final OutputStream OUT = new FileOutputStream(FileDescriptor.out);

    private final StringBuilder json = new StringBuilder("{\"event\":");

    Event(String name) {
        string(name);
    }

    static Event error(String op, String type, String message) {
        return new Event("error").with("op", op).with("class", type).with("message", message);
    }

    static Event error(String op, Throwable thrown) {
        return error(op, thrown.getClass().getName(), thrown.getMessage());
    }

    Event with(String name, Object value) {
        json.append(',');
        string(name);
        json.append(':');
        if (value == null || value instanceof Number || value instanceof Boolean) {
            json.append(value);
        } else {
            string(value.toString());
        }
        return this;
    }

    void print() {
        byte[] line = json.append("}\n").toString().getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            try {
                OUT.write(line);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    private void string(String text) {
        json.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < 0x20 || c == 0x7f || Character.isSurrogate(c)) {
                // Surrogates are escaped one by one: a pair stays a pair, a lone one does not break the line.
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        json.append('"');
    }
}
