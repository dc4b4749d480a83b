package fleets

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
	"github.com/lockmigrate/lockmigrate/internal/scripts/reference"
)

const javaStory = `
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import lockmigrate.bridge.BridgeLock;

public class Story {
    public static void main(String[] args) throws Exception {
        List<String> ran = new ArrayList<>();
        BridgeLock.Eval server = (script, keys, values) -> {
            String name = script.substring(script.indexOf("bridge_") + 7, script.indexOf(".lua"));
            ran.add(name);
            if (name.equals("renew")) {
                throw new IllegalStateException("no reply");
            }
            return name.equals("acquire") ? List.of(1L, 5L, 0L) : Long.valueOf(1);
        };
        BridgeLock.Options options = new BridgeLock.Options();
        options.unit = "ms";
        BridgeLock lock = new BridgeLock(server, options, text("acquire"), text("settle"), text("renew"), text("release"));
        try {
            lock.hold("lock.orders", 1000);
            ran.add("held");
        } catch (IllegalStateException e) {
            ran.add(e.getMessage());
        }
        System.out.println(String.join(", ", ran));
    }

    private static String text(String name) throws Exception {
        return Files.readString(Path.of("bridge_" + name + ".lua"));
    }
}
`

// TestJavaReferenceReleasesWhatItCannotRenew: hold renews once before it returns. Where that gets no reply, its caller has nothing that it
// could release.
func TestJavaReferenceReleasesWhatItCannotRenew(t *testing.T) {
	redistest.Need(t, redistest.Java)
	dir := t.TempDir()
	files := map[string]string{"BridgeLock.java": reference.Java, "Story.java": javaStory}
	for _, s := range []*scripts.Script{scripts.BridgeAcquire, scripts.BridgeSettle, scripts.BridgeRenew, scripts.BridgeRelease} {
		files[s.Name] = s.Source
	}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, command := range [][]string{{"javac", "-d", ".", "BridgeLock.java", "Story.java"}, {"java", "-cp", ".", "Story"}} {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		if command[0] == "java" {
			assert.Equal(t, "acquire, renew, release, no reply\n", string(out))
		}
	}
}
