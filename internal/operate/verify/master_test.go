package verify

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	return &tap{conn: &traffic.Monitor{Conn: client}, done: over, marks: map[string]shown{}, moved: make(chan struct{})}
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

// TestSettle accounts for intervals whose marks have come, will come, and will never come.
func TestSettle(t *testing.T) {
	at := time.Now()
	look := func(m *master, mark string, setnx int64, age time.Duration) {
		m.looks = append(m.looks, look{mark: mark, at: at.Add(-age), tap: m.tap, stats: map[string]endpoint.Calls{"setnx": {Calls: setnx}}})
	}
	shown := func(m *master, mark string, setnx int64) {
		m.tap.marks[mark] = shown{counts: counts{"setnx": {lines: setnx}}}
	}
	m := fakeMaster(t)
	setnx := m.ran("setnx")
	look(m, "1", 100, 0)
	look(m, "2", 104, 0)
	shown(m, "1", 7)
	m.settle(false)
	assert.Zero(t, setnx.Run, "the second mark may still come")
	shown(m, "2", 11)
	m.settle(false)
	assert.Equal(t, Command{Name: "setnx", Run: 4, Watched: 4}, *setnx)

	look(m, "3", 106, 0)
	shown(m, "3", 12) // one less than the server counted
	m.settle(false)
	assert.Equal(t, Command{Name: "setnx", Run: 6, Watched: 5, Unmatched: 1}, *setnx)

	look(m, "4", 109, catchUp+time.Second)
	m.settle(false)
	assert.Nil(t, m.tap, "MONITOR is too far behind: it ends")
	assert.Equal(t, Command{Name: "setnx", Run: 9, Watched: 5, Unmatched: 1}, *setnx)
	assert.EqualValues(t, 4, setnx.Unwatched())

	m.tap = fakeTap(t)
	look(m, "5", 110, 0)
	shown(m, "5", 0)
	m.settle(false)
	assert.EqualValues(t, 5, setnx.Unwatched(), "MONITOR came back in between")
	look(m, "6", 120, 0)
	m.settle(true)
	assert.EqualValues(t, 15, setnx.Unwatched(), "at the end a mark that has not come never will")

	m = fakeMaster(t)
	setnx = m.ran("setnx")
	look(m, "1", 100, 0)
	shown(m, "1", 0)
	look(m, "2", 3, 0) // after a reset
	shown(m, "2", 3)
	m.settle(false)
	assert.Equal(t, Command{Name: "setnx", Unmatched: 3}, *setnx, "a count that fell is not what MONITOR showed")
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
