// Artifact.java: which version of a library is on the class path, read from the library itself.
package lockmigrate.holders;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Properties;

public final class Artifact {
    private Artifact() {
    }

    /** For example "jedis 1.5.2". */
    public static String named(String group, String name) {
        String path = "/META-INF/maven/" + group + "/" + name + "/pom.properties";
        try (InputStream in = Artifact.class.getResourceAsStream(path)) {
            if (in == null) {
                throw new IllegalStateException(name + " is not on the class path");
            }
            Properties properties = new Properties();
            properties.load(in);
            return name + " " + properties.getProperty("version");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
