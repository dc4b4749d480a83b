// Operations.java: every method that Jedis, its Pipeline and its Transaction have, with arguments by a fixed draw, and what takes more
// than one call: each call and its reply as a line of text. Two servers that act alike give the same text.
package lockmigrate.holders.operations;

import static lockmigrate.holders.operations.Methods.call;

import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Pattern;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;

public final class Operations {
    /** What stops the server, waits without end, touches what belongs to the run, or leads to other servers. */
    private static final Pattern LEFT_OUT = Pattern.compile("(shutdown|failover|slaveof|replicaof|debug|monitor|sync|.*save|bgrewriteaof|config[A-Z]|clientPause"
            + "|clientUnpause|clientKill|clientReply|clientNo|migrate|flush|swapDB|select|quit|auth|connect|disconnect|multi$|pipelined|p?subscribe|ssubscribe|get(Client|Connection)$|acl(Set|Del|Load|Save)"
            + "|.*[fF]lush|.*Kill|send[BC]|cluster|sentinel|module|hotkeys|latency|setDataSource|reset.*|toString|read(only|write)|asking|wait(Replicas|AOF)|getDB|is[A-Z]|xread|scan$|move$|exec|discard|close).*");
    /** What is random, tells a time or an id, or has no order: only the kind of the reply is told. */
    private static final Pattern VARIES = Pattern.compile("(.*[rR]and.*|spop|sscan|time|client(Id|Info|List|SetInfo|Tracking).*|info|role.*|objectIdletime|objectFreq|memory.*|slowlog.*|aclGenPass.*|aclLog.*|xinfo.*|xpending.*"
            + "|x(auto)?claim.*|pttl|pexpireTime|expireTime|ttl|dump|hello|lolwut|hvals|pubsub.*|command.*|keys|.*[tT]tl|.*[eE]xpireTime)");
    /** Methods on lists, hashes, sets, sorted sets, streams, places and hyperloglogs. */
    private static final String[] FAMILIES = {"b?[lr](pop|push|move|mpop|range|len|index|ins|rem|set|trim|pos).*|bl?m.*", "h.*", "s(add|card|diff|inter|ismember|members|mis|move|pop|rem|scan|union).*",
        "b?z.*", "x.*", "geo.*", "pf.*"};
    private static final Pattern ID = Pattern.compile("\\b1[6-9]\\d{11}(-\\d+)?\\b|time=1[6-9]\\d{11}");

    private final String host;
    private final int port;
    private final boolean resp3;
    private final String prefix;
    private final int database;
    private final PrintStream out;
    private final Set<String> refused = new HashSet<>(); // by the server, so that a transaction with one would fail as a whole
    private Jedis jedis;

    private Operations(String spec, PrintStream out) {
        String[] words = spec.split(",");
        host = words[0].split(":")[0];
        port = Integer.parseInt(words[0].split(":")[1]);
        resp3 = words[1].equals("3");
        prefix = words[2];
        database = Integer.parseInt(words[4]);
        this.out = out;
    }

    /** Each argument is HOST:PORT,PROTOCOL,PREFIX,FILE,DATABASE: where, RESP2 or RESP3, how the keys begin, and where the lines go. */
    public static void main(String[] args) throws Throwable {
        for (String spec : args) {
            try (PrintStream out = new PrintStream(new BufferedOutputStream(new FileOutputStream(spec.split(",")[3])), false, "UTF-8")) {
                new Operations(spec, out).run();
            }
        }
        System.exit(0);
    }

    private void run() throws Throwable {
        jedis = open();
        jedis.select(database);
        if (!prefix.startsWith("lock")) { // where the namespace is
            jedis.flushDB();
        }
        every();
        queued("Pipeline");
        queued("Transaction");
        transactions();
        scripts();
        large();
        scans();
        blocking();
        messages();
        clients();
        pool();
        if (!prefix.startsWith("lock")) {
            databases();
        }
        jedis.close();
    }

    private Jedis open() throws Throwable {
        if (!resp3) {
            return new Jedis(host, port);
        }
        Class<?> protocol = Class.forName("redis.clients.jedis.RedisProtocol");
        Class<?> address = Class.forName("redis.clients.jedis.HostAndPort");
        Class<?> config = Class.forName("redis.clients.jedis.JedisClientConfig");
        Object builder = Class.forName("redis.clients.jedis.DefaultJedisClientConfig").getMethod("builder").invoke(null);
        call(builder, "protocol", protocol.getField("RESP3").get(null));
        return Jedis.class.getConstructor(address, config).newInstance(address.getConstructor(String.class, int.class).newInstance(host, port), call(builder, "build"));
    }

    private String[] keys() {
        return Arrays.stream("string list hash set zset stream geo hll number none".split(" ")).map(k -> prefix + k).toArray(String[]::new);
    }

    /** The same state before each method. */
    private void fill(Object on) throws Throwable {
        String[] keys = keys();
        call(on, "del", (Object) keys);
        call(on, "set", keys[0], "text");
        call(on, "rpush", keys[1], new String[] {"a", "b", "c", "a"});
        call(on, "hset", keys[2], "f", "1");
        call(on, "hset", keys[2], "a", "b");
        call(on, "sadd", keys[3], new String[] {"a", "b", "1"});
        call(on, "zadd", keys[4], 1.5, "a");
        call(on, "zadd", keys[4], 2.0, "b");
        call(on, "eval", "redis.call('XADD',KEYS[1],'5-1','f','v') redis.call('XGROUP','CREATE',KEYS[1],'a',0) redis.call('XREADGROUP','GROUP','a','b','STREAMS',KEYS[1],'>')",
                1, new String[] {keys[5]});
        call(on, "geoadd", keys[6], 13.361389, 38.115556, "a");
        call(on, "geoadd", keys[6], 15.087269, 37.502669, "b");
        call(on, "pfadd", keys[7], new String[] {"a", "b"});
        call(on, "set", keys[8], "15");
    }

    /** Each method of Jedis three times. */
    private void every() throws Throwable {
        for (Method m : Methods.of(Jedis.class, null)) {
            if (leftOut(m)) {
                continue;
            }
            Random random = new Random(Methods.signature(m).hashCode());
            Object pipeline = jedis.pipelined();
            fill(pipeline);
            ((Pipeline) pipeline).sync();
            for (int i = 0; i < (m.getName().matches("b(?!it).*") ? 1 : 3); i++) {
                say(Methods.signature(m), m.getName(), () -> Methods.invoke(jedis, m, Methods.arguments(m, random, keysFor(m))));
            }
        }
    }

    private static boolean leftOut(Method m) {
        return LEFT_OUT.matcher(m.getName()).matches() || Methods.signature(m).matches("copy.*int.*"); // another database's keys
    }

    /** Mostly those of the method's type. One that waits for an element gets a key that has one. */
    private String[] keysFor(Method m) {
        String name = m.getName();
        String[] all = keys();
        for (int i = 0; i < FAMILIES.length; i++) {
            if (name.matches(FAMILIES[i])) {
                List<String> keys = new ArrayList<>(Collections.nCopies(name.startsWith("b") ? 1 : 15, all[1 + i]));
                keys.addAll(Arrays.asList(all).subList(0, name.startsWith("b") ? 0 : all.length));
                return keys.toArray(new String[0]);
            }
        }
        return all;
    }

    /** Each method of a Pipeline, in pipelines of all of them, or of a Transaction, in transactions of 20. */
    private void queued(String kind) throws Throwable {
        Class<?> type = Class.forName("redis.clients.jedis." + kind);
        boolean pipeline = kind.equals("Pipeline");
        List<Method> all = Methods.of(type, Class.forName("redis.clients.jedis.Response"));
        all.removeIf(m -> leftOut(m) || m.getName().matches("spop|b(?!it).*") || !pipeline && refused.contains(Methods.signature(m)));
        int size = pipeline ? 400 : 20;
        for (int from = 0; from < all.size(); from += size) {
            Object target = call(jedis, pipeline ? "pipelined" : "multi");
            fill(target);
            List<String> names = new ArrayList<>();
            List<Object> replies = new ArrayList<>();
            for (Method m : all.subList(from, Math.min(all.size(), from + size))) {
                names.add(kind + "." + Methods.signature(m));
                try {
                    replies.add(Methods.invoke(target, m, Methods.arguments(m, new Random(Methods.signature(m).hashCode() + 1), keysFor(m))));
                } catch (Throwable e) {
                    replies.add(e);
                }
            }
            if (pipeline) {
                ((Pipeline) target).sync();
            } else {
                say("exec " + from, "dump", () -> call(target, "exec"));
            }
            for (int i = 0; i < names.size(); i++) {
                Object reply = replies.get(i);
                String signature = names.get(i).replaceFirst("\\w+\\.", "");
                try {
                    call(reply, "get");
                } catch (Exception e) {
                    if (String.valueOf(e.getMessage()).matches("ERR (unknown command|wrong number).*")) {
                        refused.add(signature);
                    }
                }
                say(names.get(i), names.get(i).replaceAll(".*\\.(\\w+)\\(.*", "$1"), () -> reply instanceof Throwable ? reply : call(reply, "get"));
            }
        }
    }

    private void transactions() throws Throwable {
        Jedis other = open();
        other.select(database);
        String key = prefix + "tx";
        for (String between : new String[] {"nothing", "set", "del", "expire"}) {
            jedis.set(key, "1");
            jedis.watch(key);
            switch (between) {
                case "set": other.set(key, "2"); break;
                case "del": call(other, "del", key); break;
                case "expire": call(other, "expire", key, 100); break;
                default:
            }
            Object tx = call(jedis, "multi");
            call(tx, "incr", key);
            call(tx, "lpush", key, new String[] {"wrong type"});
            call(tx, "get", key);
            say("WATCH, then " + between, "", () -> call(tx, "exec"));
            say("after it", "", () -> jedis.get(key));
        }
        Object discarded = call(jedis, "multi");
        call(discarded, "set", key, "never");
        say("discard", "", () -> call(discarded, "discard"));
        Object pipeline = jedis.pipelined();
        List<Object> replies = new ArrayList<>();
        replies.add(call(pipeline, "del", key));
        for (int i = 0; i < 500; i++) {
            replies.add(call(pipeline, i % 3 == 0 ? "get" : "incr", key));
        }
        say("pipeline of 501", "", () -> call(pipeline, "syncAndReturnAll"));
        other.close();
    }

    private void scripts() throws Throwable {
        String key = prefix + "script";
        String script = "redis.call('SET', KEYS[1], ARGV[1]) return {redis.call('GET', KEYS[1]), tonumber(ARGV[2]), {1, 'two', false}, redis.status_reply('FINE')}";
        say("SCRIPT LOAD", "", () -> jedis.scriptLoad(script));
        String sha = jedis.scriptLoad(script);
        say("EVALSHA", "", () -> call(jedis, "evalsha", sha, 1, new String[] {key, "v", "7"}));
        say("EVAL", "", () -> call(jedis, "eval", script, Collections.singletonList(key), Arrays.asList("w", "8")));
        say("SCRIPT EXISTS", "", () -> call(jedis, "scriptExists", (Object) new String[] {sha, "0000000000000000000000000000000000000000"}));
        say("NOSCRIPT", "", () -> call(jedis, "evalsha", "0000000000000000000000000000000000000000", 1, new String[] {key}));
        say("SCRIPT FLUSH", "", () -> call(jedis, "scriptFlush"));
        say("EVALSHA after it", "", () -> call(jedis, "evalsha", sha, 1, new String[] {key, "v", "7"}));
        say("error", "", () -> call(jedis, "eval", "return redis.error_reply('MINE own words')"));
        say("wrong type", "", () -> call(jedis, "eval", "return redis.call('LPUSH', KEYS[1], 1)", 1, new String[] {key}));
        say("no script", "", () -> call(jedis, "eval", "return ("));
        Object pipeline = jedis.pipelined();
        for (int i = 0; i < 200; i++) {
            call(pipeline, "eval", "return {KEYS[1], ARGV[1]}", 1, new String[] {key, "" + i});
        }
        say("200 scripts in a pipeline", "", () -> call(pipeline, "syncAndReturnAll"));
    }

    private void large() throws Throwable {
        byte[] value = new byte[5 << 20];
        new Random(1).nextBytes(value);
        byte[] key = (prefix + "large\u0000\r\n\u00ff").getBytes(StandardCharsets.ISO_8859_1);
        if (!prefix.startsWith("lock")) { // of a lock's key, a request is at most 1 MiB
            say("SET of 5 MiB", "", () -> jedis.set(key, value));
            say("GET of 5 MiB", "", () -> Arrays.equals(value, jedis.get(key)));
            say("APPEND", "", () -> call(jedis, "append", key, value));
            say("GETRANGE", "", () -> Arrays.equals(value, (byte[]) call(jedis, "getrange", key, value.length, -1)));
            Object pipeline = jedis.pipelined();
            for (int i = 0; i < 4; i++) {
                call(pipeline, "get", key);
                call(pipeline, "rpush", (prefix + "pieces").getBytes(), new byte[][] {Arrays.copyOf(value, 1 << 20), {0}, {}});
            }
            say("pipeline of large ones", "", () -> call(pipeline, "syncAndReturnAll"));
            say("DEL", "", () -> call(jedis, "del", (Object) new byte[][] {key, (prefix + "pieces").getBytes()}));
        }
        byte[] all = new byte[256];
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) i;
        }
        say("SET of every byte", "", () -> jedis.set(key, all));
        say("GET of every byte", "", () -> jedis.get(key));
        say("DEL of it", "", () -> call(jedis, "del", key));
    }

    private void scans() throws Throwable {
        Object pipeline = jedis.pipelined();
        for (int i = 0; i < 1000; i++) {
            call(pipeline, "set", prefix + "scan:" + i, "" + i);
            call(pipeline, "hset", prefix + "scanned", "f" + i, "" + i);
            call(pipeline, "zadd", prefix + "zscanned", (double) i, "m" + i);
            call(pipeline, "sadd", prefix + "sscanned", new String[] {"m" + i});
        }
        ((Pipeline) pipeline).sync();
        for (String scan : new String[] {"scan", "hscan", "sscan", "zscan"}) {
            TreeSet<String> found = new TreeSet<>();
            String cursor = "0";
            do {
                Object page = scan.equals("scan") ? call(jedis, "scan", cursor) : call(jedis, scan, prefix + (scan.equals("hscan") ? "" : scan.substring(0, 1)) + "scanned", cursor);
                for (Object o : (List<?>) call(page, "getResult")) {
                    if (!scan.equals("scan") || Methods.text(o).contains(":scan:")) {
                        found.add(Methods.text(o));
                    }
                }
                try {
                    cursor = (String) call(page, "getStringCursor");
                } catch (NoSuchMethodException e) {
                    cursor = (String) call(page, "getCursor");
                }
            } while (!cursor.equals("0"));
            say("all of " + scan, "", () -> found.size() + " " + found.hashCode());
        }
        say("SORT", "", () -> call(jedis, "sort", prefix + "none"));
        call(jedis, "rpush", prefix + "order", new String[] {"3", "1", "2"});
        say("SORT", "", () -> call(jedis, "sort", prefix + "order"));
        say("SORT BY GET", "", () -> call(jedis, "eval", "return redis.call('SORT', KEYS[1], 'BY', KEYS[2] .. ':*', 'GET', '#', 'GET', KEYS[2] .. ':*', 'DESC')", 2, new String[] {prefix + "order", prefix + "scan"}));
        Object clean = jedis.pipelined();
        for (int i = 0; i < 1000; i++) {
            call(clean, "del", prefix + "scan:" + i);
        }
        call(clean, "del", (Object) new String[] {prefix + "scanned", prefix + "zscanned", prefix + "sscanned", prefix + "order"});
        ((Pipeline) clean).sync();
    }

    private interface Step {
        Object run() throws Throwable;
    }

    /** Another connection acts when the server has this one among those that wait. */
    private void blocking() throws Throwable {
        String list = prefix + "queue";
        Jedis other = open();
        other.select(database);
        for (String element : new String[] {"a", "b"}) {
            CompletableFuture<Object> waits = CompletableFuture.supplyAsync(() -> {
                try {
                    return element.equals("a") ? (Object) call(jedis, "blpop", 5, new String[] {list, list + "2"}) : (Object) call(jedis, "brpoplpush", list, list + "2", 5);
                } catch (Throwable e) {
                    return e;
                }
            });
            while (!waits.isDone() && !other.info("clients").contains("blocked_clients:1")) {
                Thread.sleep(1);
            }
            call(other, "rpush", list, new String[] {element});
            say("an element for one who waits", "", waits::get);
        }
        say("nobody comes", "", () -> call(jedis, "blpop", 1, new String[] {list}));
        say("DEL", "", () -> call(jedis, "del", (Object) new String[] {list, list + "2"}));
        other.close();
    }

    /** Both overloads of each: in newer versions the type is a parameter of the class. A server ends several subscriptions in any order. */
    private final class Listener extends JedisPubSub {
        private final List<String> heard = Collections.synchronizedList(new ArrayList<>());
        private final CountDownLatch ready = new CountDownLatch(2);

        private void hear(String what, Object... of) {
            heard.add(what + Methods.text(Arrays.asList(of)));
            if (of[of.length - 1].equals("end")) {
                if (what.equals("message")) {
                    unsubscribe();
                } else {
                    punsubscribe();
                }
            }
            if (what.endsWith("subscribed")) {
                ready.countDown();
            }
        }

        @Override public void onMessage(String c, String m) { hear("message", c, m); }
        public void onMessage(Object c, Object m) { hear("message", c, m); }
        @Override public void onPMessage(String p, String c, String m) { hear("pmessage", p, c, m); }
        public void onPMessage(Object p, Object c, Object m) { hear("pmessage", p, c, m); }
        @Override public void onSubscribe(String c, int n) { hear("subscribed", c, n); }
        public void onSubscribe(Object c, int n) { hear("subscribed", c, n); }
        @Override public void onPSubscribe(String c, int n) { hear("psubscribed", c, n); }
        public void onPSubscribe(Object c, int n) { hear("psubscribed", c, n); }
        @Override public void onUnsubscribe(String c, int n) { hear("unsubscribe", n); }
        public void onUnsubscribe(Object c, int n) { hear("unsubscribe", n); }
        @Override public void onPUnsubscribe(String c, int n) { hear("punsubscribe", n); }
        public void onPUnsubscribe(Object c, int n) { hear("punsubscribe", n); }
    }

    private void messages() throws Throwable {
        for (boolean pattern : new boolean[] {false, true}) {
            Listener listener = new Listener();
            Jedis subscriber = open();
            CompletableFuture<Void> runs = CompletableFuture.runAsync(() -> {
                if (pattern) {
                    subscriber.psubscribe(listener, prefix + "news.*", prefix + "more*");
                } else {
                    subscriber.subscribe(listener, prefix + "news.a", prefix + "more");
                }
            });
            listener.ready.await();
            say("PUBSUB CHANNELS", "", () -> new TreeSet<>(jedis.pubsubChannels(prefix + "*")));
            say("PUBSUB NUMSUB", "", () -> call(jedis, "pubsubNumSub", (Object) new String[] {prefix + "news.a"}));
            for (int i = 0; i < 300; i++) {
                call(jedis, "publish", prefix + "news.a", "m" + i);
            }
            say("PUBLISH", "", () -> call(jedis, "publish", prefix + "more", "another channel"));
            say("PUBLISH", "", () -> call(jedis, "publish", prefix + "nobody", "listens"));
            say("PUBLISH", "", () -> call(jedis, "publish", prefix + "news.a", "end"));
            runs.get();
            say("heard", "", () -> listener.heard);
            say("a command on the subscriber's connection", "", () -> subscriber.ping());
            subscriber.close();
        }
    }

    private void clients() throws Throwable {
        say("CLIENT SETNAME", "", () -> jedis.clientSetname("operations"));
        say("CLIENT GETNAME", "", () -> jedis.clientGetname());
        say("CLIENT LIST", "", () -> jedis.clientList().contains("name=operations"));
        say("INFO", "", () -> jedis.info("server").contains("redis_version:"));
        say("CONFIG GET", "", () -> call(jedis, "configGet", "maxmemory-policy"));
        say("CONFIG SET", "", () -> call(jedis, "configSet", "slowlog-max-len", "100"));
        say("TIME", "", () -> jedis.time().size());
        say("WAIT", "", () -> call(jedis, "waitReplicas", 0, 10));
        Jedis victim = open();
        victim.clientSetname("victim");
        for (String line : jedis.clientList().split("\n")) {
            if (line.contains("name=victim")) {
                say("CLIENT KILL", "", () -> call(jedis, "clientKill", line.replaceAll(".* addr=(\\S+).*", "$1")));
            }
        }
        say("the killed one", "", () -> {
            try {
                return victim.ping();
            } catch (RuntimeException e) {
                return e.getClass().getSimpleName();
            }
        });
        victim.close();
        Jedis again = open();
        say("a new one", "", () -> again.ping());
        say("ECHO", "", () -> again.echo("\r\n$5\r\n"));
        say("AUTH without a password", "", () -> call(again, "auth", "wrong"));
        say("QUIT", "", () -> {
            try {
                return call(again, "quit");
            } catch (NoSuchMethodException e) {
                return "OK";
            }
        });
        again.close();
    }

    private void pool() throws Throwable {
        try (redis.clients.jedis.JedisPool pool = new redis.clients.jedis.JedisPool(host, port)) {
            List<CompletableFuture<Long>> all = new ArrayList<>();
            for (int t = 0; t < 4; t++) {
                all.add(CompletableFuture.supplyAsync(() -> {
                    long n = 0;
                    for (int i = 0; i < 50; i++) {
                        try (Jedis j = pool.getResource()) {
                            n = ((Number) call(j, "incr", "pool")).longValue();
                        } catch (Throwable e) {
                            throw new IllegalStateException(e);
                        }
                    }
                    return n;
                }));
            }
            long most = 0;
            for (CompletableFuture<Long> f : all) {
                most = Math.max(most, f.get());
            }
            long counted = most;
            say("4 threads with a pool", "", () -> counted);
            try (Jedis j = pool.getResource()) {
                call(j, "del", "pool");
            }
        }
    }

    private void databases() throws Throwable {
        for (int db : new int[] {3, 4}) {
            say("SELECT", "", () -> jedis.select(db));
            say("SET", "", () -> jedis.set(prefix + "here", "" + db));
        }
        say("MOVE", "", () -> call(jedis, "move", prefix + "here", 5));
        say("DBSIZE", "", () -> call(jedis, "dbSize"));
        say("SELECT", "", () -> jedis.select(3));
        say("GET", "", () -> jedis.get(prefix + "here"));
        say("FLUSHDB", "", () -> jedis.flushDB());
        say("SELECT of none", "", () -> jedis.select(99));
        say("GET", "", () -> jedis.get(prefix + "here"));
        Map<String, String> none = new HashMap<>();
        say("HMSET of nothing", "", () -> jedis.hmset(prefix + "here", none));
        jedis.select(5);
        jedis.flushDB();
    }

    private void say(String what, String name, Step step) {
        String reply;
        try {
            Object got = step.run();
            reply = VARIES.matcher(name).matches() ? got == null ? "null" : got instanceof Throwable ? got.getClass().getSimpleName() : "a reply" : Methods.text(got);
        } catch (NoSuchMethodException | LinkageError e) {
            throw new IllegalStateException(what, e); // a fault of this program
        } catch (Throwable e) {
            reply = Methods.text(e);
            if (e.getClass().getSimpleName().equals("JedisConnectionException")) {
                reply = "connection lost";
                try {
                    jedis = open();
                    jedis.select(database);
                } catch (Throwable again) {
                    throw new IllegalStateException(again);
                }
            }
        }
        out.println(what + " -> " + ID.matcher(reply).replaceAll("<id>"));
    }
}
