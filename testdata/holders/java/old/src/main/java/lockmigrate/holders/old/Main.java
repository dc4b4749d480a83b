// Main.java: starts a holder of the old fleets. Usage: Main KIND URL [name=value ...], see ../README.md.
package lockmigrate.holders.old;

import java.util.Map;
import lockmigrate.holders.Launcher;

public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws InterruptedException {
        Launcher.run(args, Map.of(
                "jedis-lock", JedisLockHolder::new,
                "article", ArticleHolder::new,
                "jedis-uuid", UuidHolder::new),
                OldReferee::new);
    }
}
