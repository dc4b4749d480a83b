package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/handover"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/stages"
	"github.com/lockmigrate/lockmigrate/modern"
)

// TestSidecarHandover: a sidecar and a Go member are members of one record. They keep each other out at each stage, stage lists both, advance waits for
// what the sidecar holds, verify knows both, and the service's data goes from one server to the other by a drain.
func TestSidecarHandover(t *testing.T) {
	t.Parallel()
	a, b := redistest.Real(t), redistest.Real(t)
	file := t.TempDir() + "/to-b.certificate.json"
	do := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := lockmigrateIn(context.Background(), false, append(args, "--namespace", "to-b", "--redis", b.URL())...)
		require.Equal(t, want, code, stdout+stderr)
		return stdout + stderr
	}
	expect(t, exitUsage, "sidecar", "--redis", a.URL(), "--handover", "to-b", "--new", b.URL(), "--dialect", "jedis-ms")
	expect(t, exitUsage, "sidecar", "--redis", a.URL(), "--handover", "to-b", "--new", b.URL(), "--data", "old")
	addr := redistest.FreeAddr(t)
	book, err := os.ReadFile("../../docs/handover.md")
	require.NoError(t, err)
	_, chapter, _ := strings.Cut(string(book), "## Services that nobody changes")
	// printed is a line of the chapter.
	printed := func(begins string) []string {
		t.Helper()
		for line := range strings.Lines(chapter) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "lockmigrate "+begins) {
				line = strings.NewReplacer("'", "", "redis://a:6379/0", a.URL(), "redis://b:6379/0", b.URL(), "127.0.0.1:6380", addr, "25h", "500ms", "26h", "600ms",
					"to-b.certificate.json", file).Replace(line)
				return strings.Fields(line)[1:]
			}
		}
		t.Fatalf("the book has no line that begins with %q", begins)
		return nil
	}
	expect(t, exitDone, printed("stage init")...)
	expect(t, exitFailed, "sidecar", "--redis", b.URL(), "--namespace", "to-b", "--name", "billing") // a record of the other kind
	c := redistest.Real(t)
	expect(t, exitFailed, "sidecar", "--redis", c.URL(), "--handover", "to-b", "--new", b.URL(), "--data", "old", "--dialect", "jedis-ms") // another half

	begin := func(data string) (stop func() string) {
		_, stop = sidecarWith(t, printed("sidecar --handover to-b --redis redis://a:6379/0 --new redis://b:6379/0 --data "+data)...)
		return stop
	}
	stop := begin("old")
	m := toB(t, a, b)

	service := client(t, "tcp", addr)
	says := func(want any, command string, args ...any) {
		t.Helper()
		says(t, service, want, command, args...)
	}
	turn := func() {
		t.Helper()
		text := strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)
		says(int64(1), "SETNX", "lock.a", text)
		_, err := m.TryAcquire(t.Context(), "lock.a")
		require.Error(t, err)
		says(int64(1), "DEL", "lock.a")
		held, err := m.Acquire(t.Context(), "lock.a")
		require.NoError(t, err)
		says(int64(0), "SETNX", "lock.a", text)
		require.NoError(t, held.Release(t.Context()))
		says("OK", "SET", "data", "1")
	}
	turn()
	shown, _ := expect(t, exitDone, printed("stage --namespace")...)
	assert.Contains(t, shown, "sidecar:billing/")
	assert.Equal(t, 2, strings.Count(shown, "  old    old "), "two members at stage old: %s", shown)

	says(int64(1), "SETNX", "lock.held", "1")                     // of stage old
	do(exitDone, "stage", "advance", "--to", "both", "--execute") // the printed line has --wait, and waits for it
	follow := func(stage stages.Stage) {
		t.Helper()
		store := &stages.Store{Pool: b.Pool(), Namespace: "to-b", ReplyTimeout: time.Second}
		redistest.Await(t, "all to follow", 30*time.Second, func() bool {
			view, err := store.Show(t.Context())
			require.NoError(t, err)
			late, _ := view.ChangingOver()
			return len(late) == 0
		})
	}
	follow(stages.Both)
	turn()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, stdout, stderr := lockmigrateIn(ctx, false, "stage", "advance", "--to", "new", "--force", "a test", "--execute", "--namespace", "to-b", "--redis", b.URL())
	assert.Contains(t, stdout+stderr, "holds a lock of, stage old", "advance waits for it")
	assert.Contains(t, do(exitDone, "stage"), "stage      both")
	says(int64(1), "DEL", "lock.held")
	expect(t, exitDone, printed("stage advance --namespace to-b --to both")...)

	working, over := make(chan bool), make(chan bool)
	go func() {
		defer close(over)
		for {
			select {
			case <-working:
				return
			default:
				turn()
			}
		}
	}()
	verdict, _ := expect(t, exitDone, printed("verify --only-members")...)
	assert.Contains(t, verdict, "verdict: NONE-SEEN")
	close(working)
	<-over
	expect(t, exitDone, printed("stage advance --namespace to-b --to new")...)
	follow(stages.New)
	turn()
	assert.Equal(t, "1", a.Value("data"))
	assert.Empty(t, b.Value("data"))

	next := begin("new")
	stop()
	service = client(t, "tcp", addr)
	turn()
	assert.Equal(t, "1", b.Value("data"))
	assert.Equal(t, int64(0), a.Do("EXISTS", "lock.a"))
	next()
}

// toB is a Go member of namespace to-b.
func toB(t *testing.T, a, b *redistest.Server) handover.Locker {
	t.Helper()
	old, err := modern.New(a.Pool(), modern.Options{})
	require.NoError(t, err)
	new, err := modern.New(b.Pool(), modern.Options{})
	require.NoError(t, err)
	m, err := handover.New(b.Pool(), handover.Options{Namespace: "to-b", Old: old, New: new, Lease: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _, _, _ = m.Close(), old.Close(), new.Close() })
	require.NoError(t, m.Ready(t.Context()))
	return m
}

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
	m := toB(t, a, b)
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
	assert.Contains(t, do(exitDone, "next"), "lockmigrate stage --namespace to-b", "the record has a member")
	do(exitDone, "stage", "rollback", "--to", "both", "--wait", "--execute")
	assert.Contains(t, do(exitUnsafe, advance...), "about another namespace, or another epoch")
	require.NoError(t, m.Close())
	assert.Contains(t, do(exitDone, "next"), "no member lives")
}
