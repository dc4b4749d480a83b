// Main.java: starts the holder of jboot's lock. Usage: Main KIND URL [name=value ...], see ../README.md.
package lockmigrate.holders.jboot;

import java.util.Map;
import lockmigrate.holders.Launcher;

public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws InterruptedException {
        System.setOut(System.err); // its serializer prints what it cannot read; the events go another way
        Launcher.run(args, Map.of("jboot", JbootHolder::new), JbootReferee::new);
    }
}
