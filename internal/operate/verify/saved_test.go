package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/verify"
)

// cut runs until the first state is saved, and once more after act, and returns that state as its file has it.
func cut(t *testing.T, end *endpoint.Endpoint, opts verify.Options, act func()) verify.Saved {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last verify.Saved
	saves := 0
	opts.Save = func(s verify.Saved) {
		switch saves++; saves {
		case 1:
			act()
		case 3: // the one after covers what act has done
			last = s
			cancel()
		}
	}
	c, err := verify.Run(ctx, end, opts)
	require.NoError(t, err)
	require.False(t, c.Evidence.Finished)
	require.Equal(t, 3, saves)
	var text bytes.Buffer
	require.NoError(t, last.Write(&text))
	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	s, err := verify.LoadSaved(file)
	require.NoError(t, err)
	return s
}

// TestResume ends runs in the middle and goes on with them. A gap in which nothing ran is bridged and not counted; one in which a
// command ran, or the server was another one, begins the window again; what was seen, and what was lost, stays so.
func TestResume(t *testing.T) {
	options := verify.Options{Match: []string{"lock:*"}, Window: 2 * time.Second, Longest: 2 * time.Second, Look: 50 * time.Millisecond}
	nothing := func(*redistest.Server) {}
	old := func(s *redistest.Server) { s.Do("SETNX", "lock:1", "1700000000000"); s.Do("DEL", "lock:1") }
	for _, c := range []struct {
		what     string
		whole    bool
		act, gap func(*redistest.Server) // within the first run, and after it
		verdict  verify.Verdict
		anew     string
		open     []string
	}{
		{"nothing ran", false, nothing, nothing, verify.NoneSeen, "", nil},
		{"nothing ran, MONITOR was on", true, nothing, nothing, verify.NoneSeen, "", nil},
		{"reads", true, nothing, func(s *redistest.Server) { s.Do("GET", "lock:1"); s.Do("INFO") }, verify.NoneSeen, "", nil},
		{"an old client in the gap", true, nothing, old, verify.NoneSeen, "1 DEL, 1 SETNX ran while nobody looked", nil},
		{"a token in the gap", true, nothing, func(s *redistest.Server) { s.Do("SET", "lock:1", "token", "NX", "PX", "1") }, verify.NoneSeen, "1 SET ran while nobody looked", nil},
		{"the counters were reset", true, nothing, func(s *redistest.Server) { s.Do("CONFIG", "RESETSTAT") }, verify.NoneSeen, "its counters were reset", nil},
		{"another server", true, nothing, func(s *redistest.Server) { s.Kill(); s.Start() }, verify.NoneSeen, "it restarted or was replaced", nil},
		{"an old client before the gap", true, old, nothing, verify.Seen, "", []string{"commands"}},
		{"an old client before the gap, another one in it", true, old, old, verify.Seen, "1 DEL, 1 SETNX ran", []string{"commands"}},
		{"a command that nobody saw, before the gap", false, old, nothing, verify.Inconclusive, "", []string{"commands"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			live(s)
			end, err := endpoint.Parse(s.URL(), endpoint.TLSFiles{})
			require.NoError(t, err)
			opts := options
			opts.Whole = c.whole
			saved := cut(t, end, opts, func() { c.act(s) })
			assert.Less(t, saved.Evidence.LookedSeconds, 2.0)
			c.gap(s)
			time.Sleep(1100 * time.Millisecond)
			again := saved.Options
			assert.Equal(t, opts.Match, again.Match)
			again.Resume = &saved
			var later *verify.Saved
			again.Save = func(s verify.Saved) { later = &s }
			began := time.Now()
			cert, err := verify.Run(t.Context(), end, again)
			require.NoError(t, err)
			took := time.Since(began).Seconds()
			assert.Equal(t, c.verdict, cert.Verdict, cert.Why)
			if c.open == nil {
				assert.Empty(t, open(cert))
			} else {
				assert.Equal(t, c.open, open(cert))
			}
			require.Len(t, cert.Evidence.Gaps, 1)
			assert.GreaterOrEqual(t, cert.Evidence.LookedSeconds, 2.0)
			if c.anew == "" {
				assert.Empty(t, cert.Evidence.Gaps[0].Restarted)
				assert.GreaterOrEqual(t, took, 2-saved.Evidence.LookedSeconds-0.01, "the gap is no part of the window")
				assert.True(t, cert.Evidence.Started.Equal(saved.Evidence.Started))
				if c.verdict == verify.NoneSeen {
					assert.Contains(t, cert.Obligations[0].Evidence, "1 gap of")
					assert.Contains(t, fmt.Sprint(cert.ResidualRisks), "nobody looked")
				}
			} else {
				assert.Contains(t, cert.Evidence.Gaps[0].Restarted, c.anew)
				assert.GreaterOrEqual(t, took, 2.0, "the whole window once more")
			}
			require.NotNil(t, later, "a run that goes on can be ended too")
			assert.Len(t, later.Evidence.Gaps, 1)
		})
	}
}
