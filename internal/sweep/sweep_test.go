package sweep_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/redistest"
	"github.com/lockmigrate/lockmigrate/internal/sweep"
)

// furnish puts ghosts, live locks and keys of others on a server.
func furnish(s *redistest.Server) {
	at := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	s.Do("SET", "lock:ghost", at(-48*time.Hour))
	s.Do("SET", "lock:\xff\x00ghost", at(-49*time.Hour))
	s.Do("SET", "lock:live", at(time.Hour))
	s.Do("SET", "lock:expired", at(-time.Minute))
	s.Do("SET", "lock:token", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30")
	s.Do("SET", "lock:modern", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a31", "PX", 60000)
	s.Do("HSET", "lock:redisson", "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "1")
	s.Do("SET", "other:login", at(-480*time.Hour))
}

func run(t *testing.T, s *redistest.Server, o sweep.Options) (sweep.Summary, map[string]sweep.Entry) {
	t.Helper()
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	entries := map[string]sweep.Entry{}
	o.Match, o.GhostAfter = []string{"lock:*"}, time.Hour
	o.Emit = func(e sweep.Entry) error { entries[string(append([]byte(nil), keyOf(e)...))] = e; return nil }
	summary, err := sweep.New(end, o).Run(context.Background())
	require.NoError(t, err)
	return summary, entries
}

func keyOf(e sweep.Entry) []byte {
	if e.KeyBytes != nil {
		return e.KeyBytes
	}
	return []byte(e.Key)
}

func TestSweep(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	summary, found := run(t, s, sweep.Options{Tokens: true})
	assert.Len(t, found, 4)
	assert.EqualValues(t, 4, summary.ByResult[sweep.Planned])
	assert.EqualValues(t, 8, s.Do("DBSIZE"), "dry")

	file := filepath.Join(t.TempDir(), "journal.jsonl")
	journal, err := sweep.OpenJournal(file)
	require.NoError(t, err)
	summary, found = run(t, s, sweep.Options{Execute: true, Journal: journal.Write})
	require.NoError(t, journal.Close())
	assert.EqualValues(t, 3, summary.ByResult[sweep.Done])
	assert.Equal(t, sweep.Remove, found["lock:ghost"].Action)
	assert.Equal(t, sweep.Remove, found["lock:\xff\x00ghost"].Action)
	assert.Equal(t, sweep.Expire, found["lock:redisson"].Action)
	assert.EqualValues(t, 0, s.Do("EXISTS", "lock:ghost", "lock:\xff\x00ghost"))
	assert.Greater(t, s.Do("PTTL", "lock:redisson"), int64(3_000_000))
	assert.EqualValues(t, 5, s.Do("EXISTS", "lock:live", "lock:expired", "lock:token", "lock:modern", "other:login"))
	assert.EqualValues(t, -1, s.Do("PTTL", "lock:token"), "tokens are left alone unless asked for")

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	assert.Len(t, lines, 6, "one before and one after each change")
	for i, line := range lines {
		var e sweep.Entry
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		assert.Equal(t, []sweep.Result{sweep.Planned, sweep.Done}[i%2], e.Result)
	}

	summary, _ = run(t, s, sweep.Options{Execute: true, Journal: func(sweep.Entry) error { return nil }})
	assert.Zero(t, summary.Candidates, "a second run finds nothing")
	_, found = run(t, s, sweep.Options{Execute: true, Tokens: true, TTL: time.Minute, Journal: func(sweep.Entry) error { return nil }})
	assert.Equal(t, sweep.Done, found["lock:token"].Result)
	assert.Greater(t, s.Do("PTTL", "lock:token"), int64(50_000))
}

// TestAClientComesInBetween lets a client take the lock after the look and before the change.
func TestAClientComesInBetween(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	taken := fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())
	_, found := run(t, s, sweep.Options{Execute: true, Tokens: true, Journal: func(e sweep.Entry) error {
		if e.Result != sweep.Planned {
			return nil
		}
		if e.Key == "lock:redisson" {
			s.Do("HSET", e.Key, "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30:41", "2")
		} else {
			s.Do("GETSET", string(keyOf(e)), taken)
		}
		return nil
	}})
	assert.Len(t, found, 4)
	for key, e := range found {
		assert.Equal(t, sweep.Changed, e.Result, key)
		if key != "lock:redisson" {
			assert.Equal(t, taken, s.Value(key))
		}
		assert.EqualValues(t, -1, s.Do("PTTL", key))
	}
}

// TestJournalFirst fails the journal, and wants no change without a line.
func TestJournalFirst(t *testing.T) {
	s := redistest.Real(t)
	furnish(s)
	end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
	require.NoError(t, err)
	_, err = sweep.New(end, sweep.Options{Match: []string{"lock:*"}, GhostAfter: time.Hour, Execute: true, Journal: func(sweep.Entry) error { return os.ErrClosed }}).Run(context.Background())
	assert.ErrorIs(t, err, os.ErrClosed)
	assert.EqualValues(t, 8, s.Do("DBSIZE"))
}
