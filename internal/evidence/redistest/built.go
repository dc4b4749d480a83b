package redistest

import (
	"bytes"
	"context"
	"errors"
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

// Command runs a build of the operator's command against a server, and returns its exit code and what it said.
func (s *Server) Command(ctx context.Context, program string, args ...string) (code int, out, stderr string) {
	s.t.Helper()
	cmd := exec.CommandContext(ctx, program, append(args, "--redis", s.URL())...)
	cmd.Env = append(os.Environ(), "LOCKMIGRATE_REDIS=")
	var said, warned bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &warned
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), said.String(), warned.String()
}
