package verify

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/endpoint"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
)

// fakeTap is a MONITOR that shows nothing by itself.
func fakeTap(t *testing.T) *tap {
	client, server := net.Pipe()
	t.Cleanup(func() { _ = server.Close() })
	over := make(chan struct{})
	close(over)
	return &tap{conn: &traffic.Monitor{Conn: client}, done: over, moved: make(chan struct{})}
}

func fakeMaster(t *testing.T) *master {
	return &master{q: &inquiry{}, addr: "a:1", tap: fakeTap(t), table: someTable, last: reading{version: "7.0.15"}, commands: map[string]*Command{}, waiting: map[string]int64{}}
}

// TestMonitorEndsOnABusyServer has a server whose main thread is busy for a while, and for too long.
func TestMonitorEndsOnABusyServer(t *testing.T) {
	m := fakeMaster(t)
	at := time.Unix(1_700_000_000, 0)
	second := func(load float64) {
		now := reading{at: at, cpu: m.last.cpu + load}
		if !m.last.at.IsZero() {
			m.watchLoad(now)
		}
		m.last, at = now, at.Add(time.Second)
	}
	for _, load := range []float64{0.5, 0.95, 0.95, 0.5, 0.95, 0.95} {
		second(load)
	}
	assert.NotNil(t, m.tap, "busy for two seconds at a time")
	second(0.95)
	assert.Nil(t, m.tap, "busy for three seconds")
	assert.Len(t, m.facts.WatchBreaks, 1)
	assert.Greater(t, time.Until(m.retry), coolPause/2)
}

// TestAccount accounts for intervals that MONITOR has shown, and has not shown.
func TestAccount(t *testing.T) {
	m := fakeMaster(t)
	between := func(from, to, shownFrom, shownTo int64, watched bool) Command {
		at := func(calls int64) reading { return reading{stats: map[string]endpoint.Calls{"setnx": {Calls: calls}}} }
		m.account(at(from), at(to), counts{"setnx": {lines: shownFrom}}, counts{"setnx": {lines: shownTo}}, watched)
		return *m.ran("setnx")
	}
	assert.Equal(t, Command{Name: "setnx", Run: 4, Watched: 4}, between(100, 104, 7, 11, true))
	assert.Equal(t, Command{Name: "setnx", Run: 6, Watched: 5, Unmatched: 1}, between(104, 106, 11, 12, true), "one less than the server counted")
	is := between(106, 109, 0, 0, false)
	assert.Equal(t, Command{Name: "setnx", Run: 9, Watched: 5, Unmatched: 1}, is)
	assert.EqualValues(t, 4, is.Unwatched())
	m = fakeMaster(t)
	assert.Equal(t, Command{Name: "setnx", Unmatched: 3}, between(100, 3, 0, 3, true), "a count that fell is not what MONITOR showed")
}

// TestAMarkThatDoesNotCome has a MONITOR that shows one look and not the next.
func TestAMarkThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fakeMaster(t)
		m.tap.mark, m.tap.counts = "1", counts{"setnx": {lines: 7}}
		shown, by, err := m.awaitMark(t.Context(), "1")
		require.NoError(t, err)
		assert.Equal(t, m.tap, by)
		assert.Equal(t, m.tap.counts, shown)

		ctx, cancel := context.WithTimeout(t.Context(), catchUp-time.Second)
		defer cancel()
		_, _, err = m.awaitMark(ctx, "2")
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotNil(t, m.tap, "the run was interrupted")
		_, by, err = m.awaitMark(t.Context(), "2")
		require.NoError(t, err)
		assert.Nil(t, by)
		assert.Nil(t, m.tap, "MONITOR is too far behind: it ends")
		assert.Contains(t, m.facts.WatchBreaks[0], "it is behind")
	})
}

// FuzzTraffic reads lines of MONITOR. Clients choose every part of them but the frame.
func FuzzTraffic(f *testing.F) {
	for _, words := range []string{
		`"SETNX" "lock:1" "1700000030000"`, `"set" "lock:1" "x" "NX" "PX" "10"`, `"MSETNX" "a" "1" "lock:1" "\xf6"`, `"RENAMENX" "a" "lock:1"`,
		`"EVAL" "return 1" "0"`, `"ECHO" "mine-1"`, `"INFO" "all"`, `"SETEX" "lock:1" "1"`, `"SET"`, `"SETNX" "lock:1"`,
	} {
		f.Add("+1700000000.123456 [0 127.0.0.1:5000] " + words + "\r\n")
		f.Add("+1700000000.123456 [0 lua] " + words + "\r\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, cut := range []bool{false, true} {
			tr := reader{table: someTable, prefix: "mine-", counts: counts{}, matches: func(string) bool { return true }}
			tr.take(text, cut)
			name, _ := commandIn(text)
			if name == "" || strings.Contains("ECHO INFO EVAL EVALSHA FCALL GET", name) || !someTable.MayWrite(name) {
				continue
			}
			name = strings.ToLower(name)
			n := tr.counts[name]
			// Where every key is a lock key, SETNX and GETSET are seen, or not clear, or the line is no line.
			assert.False(t, (name == "setnx" || name == "getset") && len(tr.touches) == 0 && n.unclear == 0 && tr.garbled == 0, "%q vanished (cut: %v)", text, cut)
			assert.True(t, n.lines+tr.garbled == 1, "%q is counted %d times", text, n.lines)
		}
	})
}

// FuzzJudge judges evidence from files that anybody may have written: it never fails, and never says none-seen
// beside an open obligation.
func FuzzJudge(f *testing.F) {
	text, err := json.Marshal(clean())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"masters":[{}],"finished":true}`)
	f.Fuzz(func(t *testing.T, text string) {
		var e Evidence
		if json.Unmarshal([]byte(text), &e) != nil {
			return
		}
		c := Certify(e)
		open := 0
		for _, o := range c.Obligations {
			if !o.Discharged {
				open++
			}
		}
		assert.False(t, c.Verdict == NoneSeen && (open > 0 || len(e.Seen) > 0 || len(e.Masters) == 0), "none-seen on %q", text)
	})
}

// TestLoadOfAnotherFormat: a later format is refused by its name, and any other file as what it is not.
func TestLoadOfAnotherFormat(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.json")
	for text, says := range map[string]string{
		`{"format":"lockmigrate-certificate-2","verdict":7}`:           "of format lockmigrate-certificate-2",
		`{"format":"lockmigrate-certificate-2","verdict":"none-seen"}`: "of format lockmigrate-certificate-2, and this build reads lockmigrate-certificate-1",
		`{"format":"lockmigrate-verify-state-1"}`:                      "no certificate",
		`{`: "no certificate",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Load(file)
		require.ErrorContains(t, err, says, text)
	}
}
