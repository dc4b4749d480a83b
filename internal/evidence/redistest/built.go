package redistest

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// Operators is the package of the operator's command, for Built.
const Operators = "cmd/lockmigrate"

var (
	building sync.Mutex
	built    string // the folder of the programs; Main removes it
)

// Built returns the program of a package of this module. It is built once for all tests of a package, whose TestMain is Main.
func Built(t testing.TB, pkg string) string {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	if built == "" {
		var err error
		if built, err = os.MkdirTemp("", "built"); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(built, path.Base(pkg))
	if _, err := os.Stat(program); err == nil {
		return program
	}
	if out, err := exec.Command("go", "build", "-o", program, "github.com/lockmigrate/lockmigrate/"+pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return program
}
