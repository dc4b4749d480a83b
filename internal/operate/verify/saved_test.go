package verify_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/census"
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

// TestResume ends runs in the middle and goes on with them. A gap in which nothing ran that has to be accounted for is bridged and not counted;
// any other, and a run that could come to nothing any more, begins the window again; what was seen stays so.
func TestResume(t *testing.T) {
	options := verify.Options{Match: []string{"lock:*"}, Window: 2 * time.Second, Longest: 2 * time.Second, Look: 50 * time.Millisecond}
	for _, row := range redistest.Rows(t, "testdata/resume.txt") {
		cells := strings.Split(strings.Join(row, " "), " | ")
		require.Len(t, cells, 6, row)
		verdict, anew := verify.Verdict(cells[0]), strings.Trim(cells[5], "-")
		t.Run(strings.Join(row, " "), func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			live(s)
			end := at(t, s.URL())
			opts := options
			opts.Whole = cells[2] == "monitor"
			if cells[2] == "rules" { // no other user may write
				opts.Trusted = []string{"default"}
			}
			saved := cut(t, end, opts, func() { sends(t, s, cells[3]) })
			assert.Less(t, saved.Evidence.LookedSeconds, 2.0)
			assert.True(t, saved.At.After(saved.Evidence.Ended), "what was looked at ends with the beginning of the last looks")
			sends(t, s, cells[4])
			time.Sleep(1100 * time.Millisecond)
			again := saved.Options
			assert.Equal(t, opts.Match, again.Match)
			again.Resume = &saved
			var later *verify.Saved
			said := ""
			again.Warn = func(text string) { said += text }
			again.Save = func(s verify.Saved) { later = &s }
			began := time.Now()
			cert, err := verify.Run(t.Context(), end, again)
			require.NoError(t, err)
			took := time.Since(began).Seconds()
			assert.Equal(t, verdict, cert.Verdict, cert.Why)
			assert.Equal(t, cells[1], cmp.Or(strings.Join(open(cert), " "), "nothing"))
			assert.GreaterOrEqual(t, cert.Evidence.LookedSeconds, 2.0)
			if anew == "" {
				assert.NotContains(t, said, "begins again")
				assert.GreaterOrEqual(t, took, 2-saved.Evidence.LookedSeconds-0.01, "the gap is no part of the window")
				assert.True(t, cert.Evidence.Started.Equal(saved.Evidence.Started))
				require.Len(t, cert.Evidence.Gaps, 1)
				assert.Equal(t, saved.Evidence.Ended, cert.Evidence.Gaps[0].From)
				assert.Contains(t, fmt.Sprint(cert.ResidualRisks), "nobody looked")
			} else {
				assert.Contains(t, said, "the window begins again: ")
				assert.Contains(t, said, anew)
				assert.Empty(t, cert.Evidence.Gaps)
				assert.GreaterOrEqual(t, took, 2.0, "the whole window once more")
			}
			require.NotNil(t, later, "a run that goes on can be ended too")
			assert.Equal(t, cert.Evidence.Gaps, later.Evidence.Gaps)
		})
	}
}

// TestTellsOneAfterTheOther has a command run unwatched while the keys are read at the start.
func TestTellsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	live(s)
	end := at(t, s.URL())
	var reading atomic.Bool
	warned := false
	_, err := verify.Run(t.Context(), end, verify.Options{
		Match: []string{"lock:*"}, Window: time.Second, Longest: time.Second, Look: 20 * time.Millisecond,
		Reading: func(census.Progress) {
			reading.Store(true)
			sends(t, s, "SETNX other 1")
			time.Sleep(200 * time.Millisecond)
			reading.Store(false)
		},
		Warn: func(string) { warned = true; assert.False(t, reading.Load()) },
	})
	require.NoError(t, err)
	assert.True(t, warned)
}

// TestSeenWhileItBeginsAgain has an old client come between the first look of a run that goes on and the window that it begins again.
func TestSeenWhileItBeginsAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	live(s)
	end := at(t, s.URL())
	saved := cut(t, end, verify.Options{Match: []string{"lock:*"}, Window: time.Second, Longest: time.Second, Look: 50 * time.Millisecond, Whole: true}, func() {})
	s.Do("CONFIG", "RESETSTAT")
	opts, came := saved.Options, false
	opts.Resume = &saved
	opts.Warn = func(text string) {
		if strings.Contains(text, "begins again") {
			came = true
			sends(t, s, "SETNX lock:1 1700000000000 ; DEL lock:1")
			time.Sleep(300 * time.Millisecond) // MONITOR tells it
		}
	}
	cert, err := verify.Run(t.Context(), end, opts)
	require.NoError(t, err)
	require.True(t, came)
	assert.Equal(t, verify.Seen, cert.Verdict, cert.Why)
}
