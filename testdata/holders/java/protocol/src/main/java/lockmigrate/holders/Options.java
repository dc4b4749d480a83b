// Options.java: the command line, KIND URL [name=value ...].
package lockmigrate.holders;

import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Every wrong argument is an IllegalArgumentException with a message for the user. */
public final class Options {
    private static final Set<String> NUMBERS = Set.of("lease", "wait", "poll", "clock");
    private static final Set<String> TEXTS = Set.of("book", "cluster", "sentinels", "master", "namespace");

    public final String kind;
    public final String id;
    public final String host;
    public final int port;
    public final int database;
    /** null where the URL has none. */
    public final String user;
    /** null where the URL has none. */
    public final String password;

    private final Map<String, Long> numbers = new HashMap<>();
    private final Map<String, String> texts = new HashMap<>();

    public Options(String[] args) {
        if (args.length < 2) {
            throw new IllegalArgumentException("want KIND redis://[user:pass@]host:port/db [name=value ...]");
        }
        kind = args[0];
        URI url = URI.create(args[1]);
        if (!"redis".equals(url.getScheme()) || url.getHost() == null) {
            throw new IllegalArgumentException("not a redis:// URL: " + args[1]);
        }
        host = url.getHost();
        port = url.getPort() < 0 ? 6379 : url.getPort();
        String path = url.getPath() == null ? "" : url.getPath().replaceFirst("^/", "");
        database = path.isEmpty() ? 0 : Integer.parseInt(path);
        String info = url.getUserInfo();
        int colon = info == null ? -1 : info.indexOf(':');
        user = colon > 0 ? info.substring(0, colon) : null;
        password = colon >= 0 ? info.substring(colon + 1) : null;
        String name = kind + "-" + ProcessHandle.current().pid();
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            if (pair.length == 2 && pair[0].equals("id")) {
                name = pair[1];
            } else if (pair.length == 2 && NUMBERS.contains(pair[0])) {
                numbers.put(pair[0], whole(pair));
            } else if (pair.length == 2 && TEXTS.contains(pair[0])) {
                texts.put(pair[0], pair[1]);
            } else {
                throw new IllegalArgumentException("unknown option " + args[i]
                        + "; want id, lease, wait, poll, clock, book, cluster, sentinels, master, namespace");
            }
        }
        if (texts.containsKey("sentinels") != texts.containsKey("master")) {
            throw new IllegalArgumentException("sentinels and master go together");
        }
        id = name;
        if (!kind.equals("member")) {
            without("namespace");
        }
    }

    /** The referee's server: that of the lock, or the one that book=HOST:PORT names. */
    private Options(Options lock, String book) {
        int colon = book.lastIndexOf(':');
        kind = lock.kind;
        id = lock.id;
        host = book.substring(0, Math.max(0, colon));
        port = (int) whole(new String[] {"the port of book", book.substring(colon + 1)});
        database = 0;
        user = null;
        password = null;
    }

    /** How to reach the referee's book. */
    public Options book() {
        String book = texts.get("book");
        return book == null ? this : new Options(this, book);
    }

    /** Nodes of a cluster, HOST:PORT each; empty without cluster=. */
    public List<String> cluster() {
        return split("cluster");
    }

    /** Sentinels, HOST:PORT each; empty without sentinels=. */
    public List<String> sentinels() {
        return split("sentinels");
    }

    /** The name that the sentinels know the master by; null without sentinels=. */
    public String master() {
        return texts.get("master");
    }

    /** The namespace to join; null without one. */
    public String namespace() {
        return texts.get("namespace");
    }

    private List<String> split(String name) {
        String all = texts.get(name);
        return all == null ? List.of() : List.of(all.split(","));
    }

    public long lease(long byDefault) {
        return notNegative("lease", byDefault);
    }

    public long poll(long byDefault) {
        return notNegative("poll", byDefault);
    }

    /** For locks that cannot wait for ever. */
    public long finiteWait(long byDefault) {
        return notNegative("wait", byDefault);
    }

    /** For locks that block by default; wait=-1 says so explicitly. */
    public long waitOrForever() {
        return Math.max(Holder.FOREVER, numbers.getOrDefault("wait", Holder.FOREVER));
    }

    /** The clock of a lock that has a hook. */
    public Clock clock() {
        return new Clock(numbers.getOrDefault("clock", 0L));
    }

    /** Refuses options that this kind would silently ignore. */
    public void without(String... names) {
        for (String name : names) {
            if (numbers.containsKey(name) || texts.containsKey(name)) {
                throw new IllegalArgumentException("kind " + kind + " has no " + name);
            }
        }
    }

    private static long whole(String[] pair) {
        try {
            return Long.parseLong(pair[1]);
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException(pair[0] + " is not a whole number: " + pair[1]);
        }
    }

    private long notNegative(String name, long byDefault) {
        long value = numbers.getOrDefault(name, byDefault);
        if (value < 0) {
            throw new IllegalArgumentException(name + " must not be negative");
        }
        return value;
    }
}
