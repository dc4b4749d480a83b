package redistest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Plant is a fault that is put into the present source by replacing text: a test of the tests.
type Plant struct {
	Name  string
	Files map[string][]string // a file of the module: what is replaced, by what, and so on
}

// Put is a file with the fault in it.
func (p *Plant) Put(t testing.TB, file string) string {
	source, err := os.ReadFile(filepath.Join(moduleRoot(), file))
	require.NoError(t, err)
	text := string(source)
	for change := range slices.Chunk(p.Files[file], 2) {
		require.Equal(t, 1, strings.Count(text, change[0]), "%s has changed: the fault %q has to be put in another place", file, p.Name)
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return text
}

// Fits checks that the fault still has its places. It takes no time.
func (p *Plant) Fits(t testing.TB) {
	for file := range p.Files {
		p.Put(t, file)
	}
}

// Build builds the tests of the package in the working folder with the fault, by an overlay over the source, and returns the program.
func (p *Plant) Build(t testing.TB) (program string) {
	dir, root := t.TempDir(), moduleRoot()
	overlay := map[string]map[string]string{"Replace": {}}
	for file := range p.Files {
		changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		require.NoError(t, os.WriteFile(changed, []byte(p.Put(t, file)), 0o600))
		overlay["Replace"][filepath.Join(root, file)] = changed
	}
	replaced, err := json.Marshal(overlay)
	require.NoError(t, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(list, replaced, 0o600))
	program = filepath.Join(dir, "planted.test")
	out, err := exec.Command("go", "test", "-c", "-ldflags", "-s -w", "-overlay", list, "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// moduleRoot is the folder of the module.
func moduleRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "../../..")
}
