package stages

import (
	"fmt"
	"runtime/debug"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/redis/glob"
)

// TestEveryKeyCanBeNamed: a text of \xHH alone is a pattern of exactly one key, whatever bytes it has, and it survives the record.
func TestEveryKeyCanBeNamed(t *testing.T) {
	named := func(key, other []byte) bool {
		if len(key) == 0 {
			return true
		}
		text := ""
		for _, c := range key {
			text += fmt.Sprintf(`\x%02x`, c)
		}
		pattern := Unescape(text)
		return CheckPatterns([]string{pattern}) == nil && Unescape(Escape(pattern)) == pattern &&
			glob.Match(pattern, key) && glob.Match(pattern, other) == (string(other) == string(key)) && !glob.Match(pattern, append(key, 'x'))
	}
	assert.NoError(t, quick.Check(named, &quick.Config{MaxCount: 2000}))
	for _, c := range []byte(special) {
		assert.True(t, named([]byte{'k', c}, []byte("kz")), "%c", c)
	}
}

func TestPatternsThatCannotBe(t *testing.T) {
	for text, says := range map[string]string{
		``:          `a pattern is empty`,
		`lk.[a]*`:   `pattern lk.[a]*: the server reads [ as part of a class, which a namespace cannot have: write \[ or \x5b for the character`,
		`lk]`:       `write \] or \x5d`,
		`lk\d`:      `a backslash stands before one of *?[]\, or begins \xHH with two hexadecimal digits`,
		`lk\x5`:     `with two hexadecimal digits`,
		`lk\`:       `a backslash stands before`,
		`*?`:        `covers every key of the server`,
		`lockmig*`:  `covers the keys of the namespaces themselves`,
		`\x6cockm*`: `covers the keys of the namespaces themselves`,
	} {
		assert.ErrorContains(t, CheckPatterns([]string{Unescape(text)}), says, text)
	}
	assert.NoError(t, CheckPatterns([]string{`lk.\[*`, Unescape(`lk.\x5b\x5c\x2a?`), `*.order`}))
}

// FuzzRecord reads what somebody else may have written into the record and the members of a namespace.
func FuzzRecord(f *testing.F) {
	f.Add(`["lock:*"]`, `{"seq":1,"epoch":1,"stage":1,"lo":1,"hi":1,"seen":1,"ends":2,"longest":3,"skew":4,"info":"{}"}`, `{"dialect":"jedis-ms","shortest_ms":1000}`, "lock:1", int64(1))
	f.Add(`[]`, `{}`, `{"lag_ms":-1}`, "", int64(-1))
	f.Add(`["*","?",""]`, `{"epoch":1e308,"ends":-1e308,"info":"\u0000"}`, `{"shortest_ms":9e18}`, "a*b", int64(99))
	f.Add(`null`, `[]`, `null`, "\xff", int64(2))
	f.Fuzz(func(t *testing.T, patterns, entry, clients, key string, stage int64) {
		s := &Store{Namespace: "n"}
		r, err := s.record(1, stage, 0, patterns, clients)
		if err == nil {
			require.True(t, Valid(r.Stage), "stage %d passed", r.Stage)
			require.False(t, r.Shortest < 0 || r.ClockLag < 0 || r.CommandDelay < 0, "a time below zero passed: %+v", r)
			covered := r.Covers(key)
			require.False(t, CheckPatterns(r.Patterns) == nil && covered && key == RecordKey("n"), "a namespace that covers its own record")
		}
		if m, _, err := member("id", entry, time.UnixMilli(1)); err == nil {
			_ = m.ID
		}
	})
}

func TestBuild(t *testing.T) {
	dep := func(version string, replaced *debug.Module) []*debug.Module {
		return []*debug.Module{{Path: "example.com/other", Version: "v9.0.0"}, {Path: library, Version: version, Replace: replaced}}
	}
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"-":                               nil,
		"billing@v1.4.2 (library v0.3.0)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", nil)},
		"billing@0123456789ab+dirty (library v0.3.0)":      {Main: debug.Module{Path: "example.com/billing", Version: "(devel)"}, Deps: dep("v0.3.0", nil), Settings: vcs("0123456789abcdef", "true")},
		"billing@v1.4.2 (library example.com/fork v0.3.1)": {Main: debug.Module{Path: "example.com/billing", Version: "v1.4.2"}, Deps: dep("v0.3.0", &debug.Module{Path: "example.com/fork", Version: "v0.3.1"})},
		"lockmigrate@v0.3.0":                               {Main: debug.Module{Path: library, Version: "v0.3.0"}},
		"job":                                              {Path: "example.com/billing/cmd/job"},
	} {
		assert.Equal(t, want, buildOf(info).String())
	}
}

// TestRelease: the version that a build sets stands before what the Go command recorded, for this repository's programs alone.
func TestRelease(t *testing.T) {
	release = "v1.2.3"
	t.Cleanup(func() { release = "" })
	ours := &debug.BuildInfo{Main: debug.Module{Path: library, Version: "(devel)"}}
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	ours.Main.Version = "v1.2.2+dirty"
	assert.Equal(t, "lockmigrate@v1.2.3", buildOf(ours).String())
	service := &debug.BuildInfo{Main: debug.Module{Path: "example.com/billing", Version: "v2.0.0"}, Deps: []*debug.Module{{Path: library, Version: "v1.0.0"}}}
	assert.Equal(t, "billing@v2.0.0 (library v1.0.0)", buildOf(service).String())
}
