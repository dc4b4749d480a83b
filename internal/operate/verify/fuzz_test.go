package verify

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
			seen := 0
			tr := reader{table: someTable, prefix: "mine-", counts: counts{}, matches: func(string) bool { return true }, saw: func(sighting) { seen++ }}
			tr.take(text, cut)
			name, _ := commandIn(text)
			if name == "" || strings.Contains("ECHO INFO EVAL EVALSHA FCALL GET", name) || !someTable.MayWrite(name) {
				continue
			}
			name = strings.ToLower(name)
			n := tr.counts[name]
			// Where every key is a lock key, SETNX and GETSET are seen, or not clear, or the line is no line.
			if (name == "setnx" || name == "getset") && seen == 0 && n.unclear == 0 && tr.garbled == 0 {
				t.Errorf("%q vanished (cut: %v)", text, cut)
			}
			if n.lines+tr.garbled != 1 {
				t.Errorf("%q is counted %d times", text, n.lines)
			}
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
		if c.Verdict == NoneSeen && (open > 0 || len(e.Seen) > 0 || len(e.Masters) == 0) {
			t.Errorf("none-seen on %q", text)
		}
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
