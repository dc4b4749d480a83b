// Package builds runs members, sidecars and tools of an earlier build and of this one in one fleet: what docs/compatibility.md promises.
package builds

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// baseline is the commit with which the promise begins: nothing was released yet, and its wire format is version 1. Each release is one more
// build, by its tag.
const baseline = "592eba7aa92e0b462db1d40f8933dbdedface128"

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait for members' reports most of the time
	redistest.Main(m, redistest.Redis)
}

// build is the programs of one state of the source.
type build struct{ name, folder string }

func (b build) lockmigrate() string { return filepath.Join(b.folder, "lockmigrate") }
func (b build) member() string      { return filepath.Join(b.folder, "member") }

// beside runs a test with each earlier build and this one, in either role.
func beside(t *testing.T, test func(t *testing.T, a, b build)) {
	t.Parallel()
	root := filepath.Join(holders.Root(t), "../..")
	for _, rev := range append([]string{baseline}, releases(t, root)...) {
		t.Run(name(rev), func(t *testing.T) {
			earlier := earlierBuild(t, root, rev)
			now := thisBuild(t)
			for _, pair := range [][2]build{{earlier, now}, {now, earlier}} {
				t.Run(pair[0].name+" first", func(t *testing.T) {
					t.Parallel()
					test(t, pair[0], pair[1])
				})
			}
		})
	}
}

// name is a commit's or tag's, short.
func name(rev string) string { return rev[:min(12, len(rev))] }

func git(root string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// releases are the tags of the releases that this source follows.
func releases(t *testing.T, root string) []string {
	out, err := git(root, "tag", "--list", "v*", "--merged", "HEAD")
	if err != nil {
		t.Skipf("left out: the earlier builds come from the repository's history, and there is none: %v", err)
	}
	return strings.Fields(out)
}

func thisBuild(t *testing.T) build {
	redistest.Built(t, redistest.Operators)
	return build{"now", filepath.Dir(redistest.Built(t, "internal/evidence/suites/builds/member"))}
}

var building sync.Mutex

// earlierBuild compiles the programs of a commit, once: they stay in the user's cache folder. Without the commit, in a clone without
// history, the test is left out.
func earlierBuild(t *testing.T, root, rev string) build {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if _, err := git(root, "cat-file", "-e", rev+"^{commit}"); err != nil {
		shallow, _ := git(root, "rev-parse", "--is-shallow-repository")
		require.Equal(t, "true", shallow, "the history is whole, and has no %s: %v", rev, err)
		t.Skipf("left out: this clone has no history, so the build of %s cannot be made; git fetch --unshallow brings it", rev)
	}
	id, err := git(root, "rev-parse", rev+"^{commit}")
	require.NoError(t, err)
	source, err := os.ReadFile("member/main.go")
	require.NoError(t, err)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	b := build{name(rev), filepath.Join(cache, "lockmigrate", "builds", fmt.Sprintf("%s-%s-%x", id[:12], runtime.Version(), sha256.Sum256(source))[:40])}
	if _, err := os.Stat(b.folder); err == nil {
		return b
	}
	tree := t.TempDir()
	_, err = git(root, "archive", "-o", filepath.Join(tree, "source.tar"), id)
	require.NoError(t, err)
	out, err := exec.Command("tar", "-xf", filepath.Join(tree, "source.tar"), "-C", tree).CombinedOutput()
	require.NoError(t, err, "%s", out)
	if _, err := os.Stat(filepath.Join(tree, "internal/scripts")); err == nil { // their place before the first release
		source = bytes.ReplaceAll(source, []byte("internal/redis/scripts"), []byte("internal/scripts"))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "cmd/member"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "cmd/member/main.go"), source, 0o644))
	made := filepath.Join(tree, "made")
	require.NoError(t, os.Mkdir(made, 0o755))
	compile := exec.Command("go", "build", "-o", made+string(filepath.Separator), "./cmd/lockmigrate", "./cmd/member")
	compile.Dir, compile.Env = tree, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err = compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.MkdirAll(filepath.Dir(b.folder), 0o755))
	out, err = exec.Command("cp", "-r", made, b.folder+".part").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Rename(b.folder+".part", b.folder))
	return b
}

// run runs a build's command.
func (b build) run(t *testing.T, server *redistest.Server, args ...string) (code int, out, stderr string) {
	t.Helper()
	ctx := redistest.Bounded(t, 2*time.Minute)
	return server.Command(ctx, b.lockmigrate(), args...)
}

// does runs a build's command, which must succeed.
func (b build) does(t *testing.T, server *redistest.Server, args ...string) string {
	t.Helper()
	code, out, stderr := b.run(t, server, args...)
	require.Zero(t, code, "%s: lockmigrate %v: %s%s", b.name, args, out, stderr)
	return out
}
