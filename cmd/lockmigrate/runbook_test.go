package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/compat"
	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/legacy"
)

// commandLine is a line of a document that a reader copies.
var commandLine = regexp.MustCompile(`(?m)^    lockmigrate (.*)$`)

// hasty makes the waits of a document short: nothing else of its lines is changed.
var hasty = strings.NewReplacer("--for 26h", "--for 4s", "--longest-silence 25h", "--longest-silence 3s", "--for 10m", "--for 2s", "--for 4s --longest-silence 3s", "--for 1500ms --longest-silence 1s", "--for 8s", "--for 1s")

// TestTheRunbookWorksAsPrinted runs every line of the runbook, in its order, beside Go services that lock and an old
// client that is switched off where the runbook says so. Only the durations of its waits are shorter.
func TestTheRunbookWorksAsPrinted(t *testing.T) {
	s := redistest.Real(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md"))
	require.NoError(t, err)
	o := operator{t, s.URL()}
	t.Chdir(t.TempDir()) // the profile, the certificate and the journal
	s.Do("ACL", "SETUSER", "java-orders", "on", ">pw", "~*", "&*", "+@all")
	s.Do("ACL", "SETUSER", "orders-service", "on", ">pw", "~*", "&*", "+@all")
	s.Do("SET", "lock.order.9", "1700000000123") // an old client died long ago
	leave := func() {}
	var lockers []compat.Locker
	lines := commandLine.FindAllStringSubmatch(string(text), -1)
	assert.Greater(t, len(lines), 20)
	stages := map[string]string{}
	for _, m := range lines {
		line := m[1]
		words := shellWords(t, hasty.Replace(line))
		switch {
		case strings.HasPrefix(line, "observe"): // old clients work until they were seen
			leave = oldClients(t, s)
		case strings.HasPrefix(line, "stage --namespace"): // step 2 is done
			for range 2 {
				lockers = append(lockers, service(t, s.Pool(), func(opts *compat.Options) { opts.Lease, opts.ClockLag, opts.CommandDelay = 0, 0, 0 }))
			}
			o.reported(2)
		case strings.HasPrefix(line, "stage delete"):
			for _, l := range lockers {
				l.Close()
			}
		}
		stdout, _ := o.runs(exitDone, words...)
		leave()
		assert.NotEmpty(t, stdout, line)
		if strings.HasPrefix(line, "stage advance") || strings.HasPrefix(line, "stage rollback") {
			if strings.Contains(line, "--execute") {
				to := words[5]
				stages[to] = line
				for _, l := range lockers {
					stage, _, err := l.Stage()
					require.NoError(t, err)
					assert.Equal(t, to, stage.String(), line)
					require.NoError(t, l.Do(t.Context(), "lock.order.17", func(context.Context) error { return nil }), line)
				}
			}
		}
	}
	assert.Len(t, stages, 3, "the lines go to every stage")
	assert.Empty(t, s.Value("lock.order.9"), "the ghost is gone")
	stdout, _ := o.runs(exitDone, "stage", "list")
	assert.Equal(t, "no namespaces\n", stdout)
}

// oldClients take turns until they leave: two on one key, and one alone on another, which is held whenever somebody looks.
func oldClients(t *testing.T, s *redistest.Server) (leave func()) {
	work, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for i, key := range []string{"lock.order.1", "lock.order.1", "lock.order.2"} {
		hold := []time.Duration{100, 100, 1000}[i] * time.Millisecond
		l, err := legacy.New(s.Pool(), legacy.Options{Lease: 3 * time.Second})
		require.NoError(t, err)
		clients.Go(func() {
			for work.Err() == nil {
				_ = l.Do(work, key, func(context.Context) error { time.Sleep(hold); return nil })
			}
		})
	}
	return func() { stop(); clients.Wait() }
}

// shellWords splits a line as a shell does, as far as the documents need it.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		end := strings.IndexByte(line+" ", ' ')
		if open := strings.IndexByte(line, '\''); open >= 0 && open < end {
			length := strings.IndexByte(line[open+1:], '\'')
			require.GreaterOrEqual(t, length, 0, line)
			words = append(words, line[:open]+line[open+1:open+1+length])
			line = line[open+1+length+1:]
			continue
		}
		words = append(words, line[:end])
		line = line[min(end, len(line)):]
	}
	return words
}
