package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestNextLeadsAHandoverThroughVerify: next asks for the certificate before stage new, names a stranger that verify has seen, and advance takes
// the step on the certificate alone, once it is clean.
func TestNextLeadsAHandoverThroughVerify(t *testing.T) {
	a, b := redistest.Real(t), redistest.Real(t)
	t.Chdir(t.TempDir())
	do := func(code int, args ...string) string {
		t.Helper()
		return operator{t, b.URL()}.says(code, append(args, "--namespace", "to-b")...)
	}
	do(exitDone, "stage", "init", "--handover", "--match", "lock.*", "--old", a.URL(), "--execute")
	old, err := modern.New(a.Pool(), modern.Options{})
	require.NoError(t, err)
	new, err := modern.New(b.Pool(), modern.Options{})
	require.NoError(t, err)
	m, err := handover.New(b.Pool(), handover.Options{Namespace: "to-b", Old: old, New: new, Lease: 2 * time.Second})
	require.NoError(t, err)
	defer func() { _, _, _ = m.Close(), old.Close(), new.Close() }()
	require.NoError(t, m.Ready(t.Context()))
	do(exitDone, "stage", "advance", "--to", "both", "--wait", "--execute")

	const file = "to-b.certificate.json"
	advance := []string{"stage", "advance", "--to", "new", "--wait", "--execute"}
	verify := func(want int, beside func()) string {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		working := make(chan bool)
		go func() {
			defer close(working)
			for ctx.Err() == nil {
				_ = m.Do(ctx, "lock.1", func(context.Context) error { beside(); return nil })
				time.Sleep(10 * time.Millisecond)
			}
		}()
		defer func() { stop(); <-working }()
		return do(want, "verify", "--only-members", "--old", a.URL(), "--for", "600ms", "--longest-silence", "500ms", "--out", file)
	}
	assert.Contains(t, do(exitDone, "next"), "lockmigrate verify --only-members --namespace to-b --old URL --longest-silence HOW-LONG --for LONGER --out "+file)
	assert.Contains(t, do(exitUnsafe, advance...), "no certificate says that there is none")

	conn := a.Conn()
	said := verify(exitInconclusive, func() { _, _ = conn.Do("SET", "lock.2", "x", "NX", "PX", 5000) })
	assert.Contains(t, said, "clients on such keys that are no members")
	assert.Contains(t, said, "lock.2")
	assert.Contains(t, do(exitDone, "next"), "no member: 127.0.0.1:")
	assert.Contains(t, do(exitUnsafe, advance...), "does not support the step")

	assert.Contains(t, verify(exitDone, func() {}), "verdict: NONE-SEEN")
	assert.NoFileExists(t, file+".state")
	assert.Contains(t, do(exitDone, "next"), "stage advance --namespace to-b --to new --certificate "+file+" --wait --execute")
	assert.Contains(t, do(exitDone, append(advance, "--certificate", file)...), "certificate: only members seen")
	do(exitDone, "stage", "rollback", "--to", "both", "--wait", "--execute")
	assert.Contains(t, do(exitUnsafe, advance...), "about another namespace, or another epoch")
}
