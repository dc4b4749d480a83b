package io.github.lockmigrate;

import io.github.lockmigrate.jedis.JedisServer;
import io.github.lockmigrate.lettuce.LettuceServer;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPoolConfig;

/** The driver for `lockmigrate conformance`: requests on stdin, answers and events on stdout, see docs/conformance.md. -Dclients=lettuce takes the other client. */
public final class Conformance {
    private final PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true);
    private final String client = System.getProperty("clients", "jedis");
    private final Map<String, Locker> lockers = new ConcurrentHashMap<>();
    private final Map<String, AutoCloseable> connections = new ConcurrentHashMap<>();
    private final Map<String, HeldLock> locks = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        new Conformance().run();
    }

    private void run() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<?, ?> request = (Map<?, ?>) Json.parse(line);
            threads.execute(() -> answer(request));
        }
        System.exit(0);
    }

    private synchronized void say(String line) {
        out.println(line);
    }

    private void answer(Map<?, ?> request) {
        String result;
        try {
            result = "\"ok\":true" + perform(request);
        } catch (Exception e) {
            String word = e instanceof ForeignFormatException ? "foreign" : e instanceof NotAcquiredException ? "refused" : e instanceof LockLostException ? "lost"
                    : e instanceof UnknownOutcomeException ? "unknown" : e instanceof StageException && !e.getMessage().contains("the Locker is closed") ? "stage" : "failed";
            if (word.equals("stage") || word.equals("failed")) {
                System.err.println(e);
            }
            result = "\"error\":\"" + word + "\",\"text\":" + Json.quote(String.valueOf(e.getMessage()));
        }
        say("{\"id\":" + ((Double) request.get("id")).longValue() + "," + result + "}");
    }

    private static Duration ms(Map<?, ?> request, String field) {
        Object value = request.get(field);
        return Duration.ofMillis(value == null ? 0 : ((Double) value).longValue());
    }

    private static String text(Map<?, ?> request, String field) {
        Object value = request.get(field);
        return value == null ? "" : (String) value;
    }

    private String perform(Map<?, ?> request) throws Exception {
        String name = text(request, "locker"), id = text(request, "lock");
        switch (text(request, "do")) {
            case "hello":
                return ",\"name\":\"lockmigrate-java\",\"version\":\"0.1.0\",\"language\":" + Json.quote("java " + System.getProperty("java.version") + ", " + client)
                        + ",\"levels\":[1,2,3,4],\"can\":[\"legacy\",\"queue\",\"fence\"]";
            case "open":
                Locker.Builder b = Locker.on(server(name, text(request, "redis"), (int) ms(request, "reply_ms").toMillis())).namespace(text(request, "namespace"))
                        .member(text(request, "member")).ttl(ms(request, "ttl_ms")).lease(ms(request, "lease_ms")).fenceTtl(ms(request, "fence_ttl_ms"));
                lockers.put(name, b.build());
                lockers.get(name).ready(Duration.ofSeconds(10));
                return "";
            case "acquire":
                Locker locker = lockers.get(name);
                Duration wait = ms(request, "wait_ms");
                HeldLock lock = wait.isZero() ? locker.tryAcquire(text(request, "key")) : locker.acquire(text(request, "key"), wait);
                locks.put(id, lock);
                lock.onLost(loss -> say("{\"event\":\"lost\",\"lock\":" + Json.quote(id) + ",\"reason\":" + Json.quote(loss.reason().name()) + "}"));
                return ",\"token\":" + Json.quote(new String(lock.token(), StandardCharsets.ISO_8859_1)) + ",\"fence\":" + lock.fence() + ",\"stage\":\"" + lock.stage() + "\"";
            case "check":
                return ",\"alive\":" + locks.get(id).alive();
            case "release":
                locks.remove(id).close();
                return "";
            case "close":
                lockers.remove(name).close();
                connections.remove(name).close();
                return "";
            default:
                throw new IllegalArgumentException("no such request: " + request);
        }
    }

    private RedisServer server(String name, String url, int timeoutMs) {
        if (client.equals("lettuce")) {
            RedisURI uri = RedisURI.create(url);
            uri.setTimeout(Duration.ofMillis(timeoutMs));
            LettuceServer server = LettuceServer.of(uri);
            connections.put(name, server);
            return server;
        }
        JedisPoolConfig config = new JedisPoolConfig();
        config.setMaxTotal(64);
        JedisPool pool = new JedisPool(config, URI.create(url), timeoutMs);
        connections.put(name, pool::close);
        return JedisServer.of(pool::getResource);
    }
}
