package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
)

// TestAdvanceOnACertificate goes to modern as an operator does: verify, then advance with what it wrote.
func TestAdvanceOnACertificate(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	file := filepath.Join(t.TempDir(), "c.json")
	do := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := lockmigrateIn(context.Background(), false, append(args, "--redis", s.URL())...)
		require.Equal(t, want, code, "%q: %s", args, stderr)
		return stdout + stderr
	}
	verify := []string{"verify", "--namespace", "orders", "--for", "1100ms", "--longest-silence", "1s", "--monitor", "--out", file}
	advance := []string{"stage", "advance", "--namespace", "orders", "--to", "modern", "--execute", "--certificate", file}
	do(exitDone, "stage", "init", "--namespace", "orders", "--match", "lock.*", "--dialect", "jedis-ms", "--shortest-lease", "1s", "--execute")
	do(exitInconclusive, verify...) // in stage legacy: a certificate of the wrong epoch
	do(exitDone, "stage", "advance", "--namespace", "orders", "--to", "bridge", "--execute")
	assert.Contains(t, do(exitUnsafe, advance...), "another epoch")
	s.Do("SETNX", "lock.a", "1")
	s.Do("DEL", "lock.a")
	working(t, s.Pool(), "orders", "lock.b")
	do(exitDone, verify...)
	assert.Contains(t, do(exitDone, advance...), "rests on   certificate: none seen in 1 s until ")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "none-seen", "seen", 1)), 0o600))
	do(exitDone, "stage", "rollback", "--namespace", "orders", "--to", "bridge", "--execute")
	do(exitUnsafe, advance...)
}
