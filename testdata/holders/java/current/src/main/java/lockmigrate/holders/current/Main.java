// Main.java: starts a holder of the current fleets. Usage: Main KIND URL [name=value ...], see ../README.md.
package lockmigrate.holders.current;

import java.util.Map;
import lockmigrate.holders.Launcher;

public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws InterruptedException {
        Launcher.run(args, Map.of(
                "article-ha", ArticleHaHolder::new,
                "member", MemberHolder::new,
                "set-nx-px", SetNxPxHolder::new,
                "redisson", RedissonHolder::new,
                "hash-uid", HashUidHolder::new),
                CurrentReferee::new);
    }
}
