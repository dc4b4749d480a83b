package io.github.lockmigrate;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A server script: the very file that the Go library sends, so the server keeps each once. Its header names its keys and arguments. */
final class Script {
    private static final Pattern HEADER = Pattern.compile("^-- (KEYS|ARGV) (\\[?)(\\w+)", Pattern.MULTILINE);
    private static final Map<String, Script> ALL = new HashMap<>();

    final byte[] text;
    final String digest;
    private final Map<String, Boolean> keys = new java.util.LinkedHashMap<>(), args = new java.util.LinkedHashMap<>(); // name, and whether it may be left out

    private Script(String name) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (InputStream in = Script.class.getResourceAsStream("lua/" + name + ".lua")) {
            byte[] part = new byte[8192];
            for (int n = in.read(part); n >= 0; n = in.read(part)) {
                out.write(part, 0, n);
            }
            text = out.toByteArray();
            digest = String.format("%040x", new java.math.BigInteger(1, MessageDigest.getInstance("SHA-1").digest(text)));
        } catch (IOException | NoSuchAlgorithmException e) {
            throw new IllegalStateException("the script " + name + " is not in the jar", e);
        }
        Matcher m = HEADER.matcher(Raw.of(text));
        while (m.find()) {
            (m.group(1).equals("KEYS") ? keys : args).putIfAbsent(m.group(3), !m.group(2).isEmpty()); // a part that is included may name it again
        }
    }

    static synchronized Script named(String name) {
        return ALL.computeIfAbsent(name, Script::new);
    }

    /** The words after EVAL and EVALSHA: the number of keys, and keys and arguments; what may be left out at the end, and is not given, is left out. */
    List<String> words(Map<String, Object> values) {
        List<String> words = fill(keys, values);
        words.add(0, Integer.toString(words.size()));
        words.addAll(fill(args, values));
        return words;
    }

    private static List<String> fill(Map<String, Boolean> names, Map<String, Object> values) {
        List<String> filled = new ArrayList<>();
        int end = 0;
        for (Map.Entry<String, Boolean> name : names.entrySet()) {
            Object value = values.get(name.getKey());
            if (value == null && !name.getValue()) {
                throw new IllegalArgumentException("the script needs " + name.getKey());
            }
            String word = value == null ? "0" : value.toString();
            filled.add(word);
            if (!name.getValue() || !word.equals("0") && !word.isEmpty()) {
                end = filled.size();
            }
        }
        return new ArrayList<>(filled.subList(0, end));
    }
}
