// Launcher.java: what the main classes of the modules have in common.
package lockmigrate.holders;

import java.util.Map;
import java.util.TreeSet;
import java.util.function.Function;

public final class Launcher {
    private Launcher() {
    }

    /** Runs the kind that the command line names. Exit codes: 0 done, 1 not started, 2 usage. */
    public static void run(String[] args, Map<String, Function<Options, Holder>> kinds,
            Function<Options, Referee> referee) throws InterruptedException {
        Console console;
        try {
            Options options = new Options(args);
            Function<Options, Holder> kind = kinds.get(options.kind);
            if (kind == null) {
                throw new IllegalArgumentException("unknown kind " + options.kind + "; want "
                        + String.join(", ", new TreeSet<>(kinds.keySet())));
            }
            console = new Console(kind.apply(options), referee.apply(options.book()), options);
        } catch (IllegalArgumentException e) {
            System.err.println("holder: " + e.getMessage());
            System.exit(2);
            return;
        } catch (RuntimeException e) {
            System.err.println("holder: cannot start: " + e);
            System.exit(1);
            return;
        }
        console.run();
    }
}
