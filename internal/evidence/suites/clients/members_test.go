package clients

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/holders"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestPythonMembers runs the tests of clients/python on a real server: members of a namespace that are threads and coroutines, whose stages
// the command line moves.
func TestPythonMembers(t *testing.T) {
	redistest.Need(t, redistest.Redis, redistest.Python)
	t.Parallel()
	program, root := filepath.Join(t.TempDir(), "lockmigrate"), holders.Root(t)
	out, err := exec.Command("go", "build", "-o", program, "github.com/lockmigrate/lockmigrate/cmd/lockmigrate").CombinedOutput()
	require.NoError(t, err, "%s", out)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	tests := exec.CommandContext(ctx, filepath.Join(root, "python/.venv-suite/bin/python"), "-B",
		filepath.Join(root, "../../clients/python/tests/test_members.py"), "-v")
	tests.Env = append(os.Environ(), "REDIS_URL="+redistest.Real(t).URL(), "LOCKMIGRATE="+program)
	tests.WaitDelay = 10 * time.Second
	out, err = tests.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.NotContains(t, string(out), "skipped")
}
