package io.github.lockmigrate;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Names of keys, in raw strings: those that accompany a lock, and the patterns of a namespace. */
final class Keys {
    private Keys() {}

    private static String hashTag(String key) {
        int start = key.indexOf('{');
        int end = start < 0 ? -1 : key.indexOf('}', start + 1);
        return end > start + 1 ? key.substring(start + 1, end) : key;
    }

    /** The cluster slot of a key: CRC-16 (XMODEM) of its hash tag, modulo 16,384. */
    private static int slot(String key) {
        int crc = 0;
        for (char b : hashTag(key).toCharArray()) {
            crc ^= b << 8;
            for (int i = 0; i < 8; i++) {
                crc = (crc & 0x8000) != 0 ? (crc << 1 ^ 0x1021) & 0xFFFF : crc << 1;
            }
        }
        return crc % 16384;
    }

    /** The name of a key that accompanies another and lies in its cluster slot: {orders}:guard, {7}orders:guard:, {n}a}b:guard::. */
    static String beside(String key, String suffix) {
        if (!hashTag(key).equals(key)) {
            return key + suffix + ":";
        }
        if (!key.isEmpty() && key.indexOf('}') < 0) {
            return "{" + key + "}" + suffix;
        }
        int wanted = slot(key), n = 0;
        while (slot(Integer.toString(n)) != wanted) {
            n++;
        }
        return "{" + n + "}" + key + suffix + "::";
    }

    /** The keys of the bridge's scripts, by the names in their headers. */
    static Map<String, Object> companions(String key) {
        Map<String, Object> names = new LinkedHashMap<>();
        names.put("key", key);
        for (String name : new String[] {"guard", "fence", "yield", "queue"}) {
            names.put(name, beside(key, ":" + name));
        }
        return names;
    }

    /** Whether the key is one of a pattern: *, ?, and a backslash before what is meant literally. */
    static boolean matches(String pattern, String key) {
        List<String> elements = new ArrayList<>();
        for (int i = 0; i < pattern.length(); i++) {
            char c = pattern.charAt(i);
            if (c == '\\' && i + 1 < pattern.length()) {
                elements.add("=" + pattern.charAt(++i));
            } else {
                elements.add(c == '*' || c == '?' ? String.valueOf(c) : "=" + c);
            }
        }
        BitSet reached = new BitSet();
        reached.set(0);
        for (int j = 0; ; j++) {
            for (int at = reached.nextSetBit(0); at >= 0; at = reached.nextSetBit(at + 1)) {
                if (at < elements.size() && elements.get(at).equals("*")) { // a * may stand for nothing
                    reached.set(at + 1);
                }
            }
            if (j == key.length()) {
                return reached.get(elements.size());
            }
            BitSet following = new BitSet();
            for (int at = reached.nextSetBit(0); at >= 0 && at < elements.size(); at = reached.nextSetBit(at + 1)) {
                String element = elements.get(at);
                if (element.equals("*")) {
                    following.set(at);
                } else if (element.equals("?") || element.equals("=" + key.charAt(j))) {
                    following.set(at + 1);
                }
            }
            reached = following;
        }
    }

    /** A pattern as the record has it, as raw: bytes that are no UTF-8 stand as \xHH, in lower case. */
    static String unescape(String pattern) {
        String raw = Raw.of(pattern);
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < raw.length(); i++) {
            char c = raw.charAt(i);
            if (c == '\\' && i + 3 < raw.length() && raw.charAt(i + 1) == 'x') {
                char b = (char) Integer.parseInt(raw.substring(i + 2, i + 4), 16);
                out.append("*?[]\\".indexOf(b) >= 0 ? "\\" : "").append(b);
                i += 3;
            } else if (c == '\\' && i + 1 < raw.length()) {
                out.append(c).append(raw.charAt(++i));
            } else {
                out.append(c);
            }
        }
        return out.toString();
    }
}
