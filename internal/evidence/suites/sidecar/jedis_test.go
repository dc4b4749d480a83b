package sidecar

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

// TestJedis wants the same text of Jedis' operations directly and through a sidecar: of an old Jedis and of the newest one. Other keys
// than the namespace's are the same at each stage, and at stage legacy the namespace's too. LEFT_OUT
// and VARIES in Operations.java name the methods that are not called, and the replies of which only the kind is compared.
func TestJedis(t *testing.T) {
	for version, test := range map[string]struct {
		jars     []string
		protocol string
		stages   []stages.Stage
		replies  int // at least, that are no errors
	}{
		"2.9.0": {[]string{"operations/target/lib/*"}, "2", []stages.Stage{stages.Bridge, stages.Modern}, 900},
		"8.0.2": {[]string{"operations/target/lib/holders-operations-1.jar", "current/target/lib/*"}, "3", []stages.Stage{stages.Modern}, 1600},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			var jars []string
			for _, jar := range test.jars {
				jars = append(jars, filepath.Join(holders.Root(t), "java", jar))
			}
			out := t.TempDir()
			args := []string{"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", strings.Join(jars, ":"), "lockmigrate.holders.operations.Operations"}
			run := func(name, addr, protocol, prefix string, database int) {
				args = append(args, fmt.Sprintf("%s,%s,%s,%s,%d", addr, protocol, prefix, filepath.Join(out, name), database))
			}
			run("direct", redistest.Real(t).Addr, test.protocol, "k:", 2)
			for _, stage := range test.stages {
				run(stage.String(), behind(t, stage), test.protocol, "k:", 2)
			}
			run("direct locks", redistest.Real(t).Addr, "2", "lock:", 0)
			run("locks", behind(t, stages.Legacy), "2", "lock:", 0)
			command := exec.Command("java", args...)
			command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			text, err := command.CombinedOutput()
			require.NoError(t, err, "%s", text)

			lines := func(name string) []string {
				text, err := os.ReadFile(filepath.Join(out, name))
				require.NoError(t, err)
				return strings.Split(strings.TrimSpace(string(text)), "\n")
			}
			direct := lines("direct")
			replies := len(direct) - strings.Count(strings.Join(direct, "\n"), "Exception: ")
			fmt.Printf("Jedis %s through a sidecar: %d operations, %d of them answered without an error\n", version, len(direct), replies)
			assert.Greater(t, replies, test.replies)
			same := func(want, got []string) {
				require.Len(t, got, len(want))
				for i := range want {
					if want[i] != got[i] {
						t.Errorf("directly:            %.500s\nthrough the sidecar: %.500s", want[i], got[i])
					}
				}
			}
			for _, stage := range test.stages {
				same(direct, lines(stage.String()))
			}
			same(lines("direct locks"), lines("locks"))
		})
	}
}
