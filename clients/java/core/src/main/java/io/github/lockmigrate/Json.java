package io.github.lockmigrate;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The JSON that a record needs: objects, arrays, strings, numbers (as Double) and words. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** @throws IllegalArgumentException it is no JSON */
    static Object parse(String text) {
        Json json = new Json(text);
        try {
            Object value = json.value();
            if (json.peek() == 0) {
                return value;
            }
        } catch (StringIndexOutOfBoundsException | NumberFormatException e) {
            throw new IllegalArgumentException("no JSON: " + text, e);
        }
        throw json.wrong();
    }

    static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c == '"' || c == '\\' ? "\\" : "").append(c);
            }
        }
        return out.append('"').toString();
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("no JSON at character " + at + ": " + text);
    }

    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private void expect(char c) {
        if (peek() != c) {
            throw wrong();
        }
        at++;
    }

    private boolean next(char end) {
        if (peek() == end) {
            at++;
            return false;
        }
        if (peek() == ',') {
            at++;
        }
        return true;
    }

    private Object value() {
        switch (peek()) {
            case '{':
                Map<String, Object> object = new LinkedHashMap<>();
                for (at++; next('}'); ) {
                    String name = string();
                    expect(':');
                    object.put(name, value());
                }
                return object;
            case '[':
                List<Object> array = new ArrayList<>();
                for (at++; next(']'); ) {
                    array.add(value());
                }
                return array;
            case '"':
                return string();
            default:
                int from = at;
                while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                    at++;
                }
                String word = text.substring(from, at);
                if (word.equals("true") || word.equals("false")) {
                    return Boolean.valueOf(word);
                }
                return word.equals("null") ? null : (Object) Double.valueOf(word);
        }
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
            if (c != '\\') {
                out.append(c);
                continue;
            }
            c = text.charAt(at++);
            if (c == 'u') {
                out.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                at += 4;
            } else {
                int known = "bfnrt".indexOf(c);
                out.append(known < 0 ? c : "\b\f\n\r\t".charAt(known));
            }
        }
        return out.toString();
    }
}
