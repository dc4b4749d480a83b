package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

// TestHangupKeepsTheCertificate sends the signals that end a window early to the program itself.
func TestHangupKeepsTheCertificate(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) { // the test was started by nohup: the command must not inherit that
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(heard) }) // not deferred: the parallel subtests run after this function has returned
	}
	s := redistest.Real(t)
	t.Run("verify", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "c.json")
		cmd := program(t, "verify", "--for", "1h", "--longest-silence", "1h", "--out", file, "--redis", s.URL())
		out := &buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		redistest.Await(t, "a state", 20*time.Second, func() bool { _, err := os.Stat(file + ".state"); return err == nil })
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		_ = cmd.Wait()
		assert.Equal(t, exitInconclusive, cmd.ProcessState.ExitCode(), out.String())
		cert, err := verify.Load(file)
		require.NoError(t, err, out.String())
		assert.Equal(t, verify.Inconclusive, cert.Verdict)
		assert.Contains(t, cert.Why, "interrupted")
		assert.FileExists(t, file+".state", "it can be resumed")
	})
	t.Run("observe", func(t *testing.T) {
		t.Parallel()
		s := redistest.Real(t)
		file := filepath.Join(t.TempDir(), "fleet.json")
		cmd := program(t, "observe", "--for", "1h", "--profile", file, "--redis", s.URL())
		out := &buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		redistest.Await(t, "MONITOR", 20*time.Second, func() bool {
			list, _ := redis.String(s.Try("CLIENT", "LIST"))
			return strings.Contains(list, "cmd=monitor")
		})
		time.Sleep(300 * time.Millisecond) // beyond the beginning
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		_ = cmd.Wait()
		assert.FileExists(t, file, out.String())
		assert.Contains(t, out.String(), "commands")
	})
	t.Run("nohup", func(t *testing.T) {
		t.Parallel()
		own := program(t, "verify", "--for", "2s", "--match", "x:*", "--longest-silence", "1s", "--redis", s.URL())
		cmd := exec.Command("sh", append([]string{"-c", `trap '' HUP; exec "$@"`, "sh"}, own.Args...)...)
		out := &buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		require.NoError(t, cmd.Start())
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		_ = cmd.Wait()
		assert.NotContains(t, out.String(), "interrupted")
	})
}

// TestCertificateOutlivesTheTerminal has a standard output that is gone, as after a hang-up.
func TestCertificateOutlivesTheTerminal(t *testing.T) {
	s := redistest.Real(t)
	file := filepath.Join(t.TempDir(), "c.json")
	code := run(context.Background(), surroundings(gone{}, gone{}, false), []string{"verify", "--for", "200ms", "--longest-silence", "100ms", "--out", file, "--redis", s.URL()})
	assert.Equal(t, exitFailed, code)
	assert.FileExists(t, file)
}

// TestVerifyOutlivesAKill ends the program itself in the middle, asks how far it was, goes on with it, and takes the step to modern
// on its certificate.
func TestVerifyOutlivesAKill(t *testing.T) {
	s := redistest.Real(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "orders.certificate.json")
	o := operator{t, s.URL()}
	o.bridges("orders", "lock.order.*")
	working(t, s.Pool(), "orders", "lock.order.1")
	t.Chdir(dir)
	cmd := program(t, "verify", "--namespace", "orders", "--for", "4s", "--longest-silence", "4s", "--monitor", "--out", file, "--redis", s.URL())
	require.NoError(t, cmd.Start())
	redistest.Await(t, "a state", 20*time.Second, func() bool { _, err := os.Stat(file + ".state"); return err == nil })
	said := o.says(exitDone, "next", "--namespace", "orders")
	assert.Contains(t, said, "s of 4s. Wait for its end")
	assert.Contains(t, strings.Join(strings.Fields(said), " "), fmt.Sprintf("a verify is looking (process %d on", cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	assert.Contains(t, o.says(exitDone, "next", "--namespace", "orders"), "lockmigrate verify --resume orders.certificate.json.state")
	s.Do("SET", "in the gap", "1") // whatever runs unseen begins the window again
	assert.NoFileExists(t, file)
	assert.Contains(t, o.says(exitUsage, "verify", "--resume", file+".state", "--for", "1s"), "cannot be given together")
	assert.Contains(t, o.says(exitFailed, "verify", "--resume", filepath.Join(dir, "nothing")), "FILE.state")

	saved, err := os.ReadFile(file + ".state")
	require.NoError(t, err)
	same := []string{"verify", "--namespace", "orders", "--for", "4s", "--longest-silence", "4s", "--monitor", "--out", file, "--restartable"}
	assert.Contains(t, o.says(exitUsage, append(same, "--for", "2m")...), "the state of a run with other options")
	said = o.says(exitDone, same...)
	assert.Contains(t, said, "goes on with the run")
	assert.Contains(t, said, "the window begins again")
	assert.NoFileExists(t, file+".state")
	assert.Contains(t, o.says(exitDone, "next", "--namespace", "orders"), "--to modern")
	assert.Contains(t, o.says(exitDone, "stage", "advance", "--namespace", "orders", "--to", "modern", "--execute"), "rests on   certificate: none seen in ")

	require.NoError(t, os.WriteFile(file+".state", saved, 0o600)) // the record is at another epoch by now
	assert.Contains(t, o.says(exitFailed, "verify", "--resume", file+".state"), "namespace orders has changed since")
}

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, syscall.EIO }

// program is the command line as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "lockmigrate") // the name tells the test binary what to be
	require.NoError(t, os.Symlink(self, name))
	return exec.Command(name, args...)
}
