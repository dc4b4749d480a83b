package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

var (
	ended = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	since = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
)

// clean is evidence that discharges every obligation: SETNX and SET run all the time, and MONITOR shows each.
func clean() Evidence {
	commands := []Command{{Name: "setnx", Run: 120, Watched: 120}, {Name: "hset", Run: 7, Watched: 7}, {Name: "set", Run: 3041, Watched: 3041}}
	return Evidence{
		AskedSeconds: 3600, LongestSeconds: 1800, Started: ended.Add(-time.Hour), Ended: ended, LookedSeconds: 3600, Finished: true,
		Patterns: []string{"lock.order.*"}, Matched: []string{"lock.order.*"},
		Namespace: &Namespace{Name: "orders", Epoch: 3, Since: since, Patterns: []string{"lock.order.*"}, Same: true, Living: 2},
		Masters: []Master{{
			Addr: "10.0.0.1:6379", RunID: "6cac81f0", Version: "7.0.15", Looks: 3600, Canary: 3599, Ended: true, Moves: "no cluster", Writes: 108, Commands: commands,
			CountsDenied: true, Named: true, LogRead: true, WatchedSeconds: 3600,
		}},
		MastersSame: true,
		Values:      Values{StartWhole: true, EndWhole: true},
		Seen:        []Client{},
	}
}

func openOf(e Evidence) (ids []string) {
	_, _, obligations := Judge(e)
	for _, o := range obligations {
		if !o.Discharged {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func TestJudge(t *testing.T) {
	verdict, why, obligations := Judge(clean())
	assert.Equal(t, NoneSeen, verdict, why)
	assert.Len(t, obligations, len(duties)-1, "all but that of a handover")

	for _, c := range []struct {
		what string
		open string // the one obligation that stays open
		but  func(e *Evidence)
	}{
		{"an interrupt", "window", func(e *Evidence) { e.Finished = false }},
		{"a short window", "window", func(e *Evidence) { e.LongestSeconds = 3601 }},
		{"nothing was said of the longest silence", "window", func(e *Evidence) { e.LongestSeconds = 0 }},
		{"a clock that was set forward", "window", func(e *Evidence) { e.LookedSeconds = 1799 }},
		{"a negative silence", "window", func(e *Evidence) { e.LongestSeconds = -1 }},
		{"other keys than the record's", "keys", func(e *Evidence) { e.Patterns = []string{"lock.order.9*"}; e.Matched = e.Patterns }},
		{"a pattern that matched nothing", "keys", func(e *Evidence) { e.Patterns = append(e.Patterns, "lokc.*") }},
		{"a record that has got a pattern more", "keys", func(e *Evidence) { e.Namespace.Patterns = append(e.Namespace.Patterns, "lock.bill.*") }},
		{"a record without patterns", "keys", func(e *Evidence) { e.Namespace.Patterns = nil }},
		{"other masters at the end", "masters", func(e *Evidence) { e.MastersSame = false }},
		{"one node of several", "masters", func(e *Evidence) { e.Masters[0].Partial = "one node of a cluster" }},
		{"a restart", "counters", func(e *Evidence) { e.Masters[0].Breaks = []string{"it restarted"} }},
		{"no last look", "counters", func(e *Evidence) { e.Masters[0].Ended = false }},
		{"one look", "counters", func(e *Evidence) { e.Masters[0].Looks = 1 }},
		{"no run id", "counters", func(e *Evidence) { e.Masters[0].RunID = "" }},
		{"a canary that does not rise", "counters", func(e *Evidence) { e.Masters[0].Canary = 3598 }},
		{"SETNX beside MONITOR", "commands", func(e *Evidence) { e.Masters[0].Commands[0].Run++ }},
		{"SET beside MONITOR", "commands", func(e *Evidence) { e.Masters[0].Commands[2].Run++ }},
		{"HSET beside MONITOR", "commands", func(e *Evidence) { e.Masters[0].Commands[1].Run++ }},
		{"SET beside MONITOR, under rules for SETNX", "commands", func(e *Evidence) { e.Masters[0].Commands[2].Run++; e.Masters[0].Ruled = []string{"setnx"} }},
		{"a command that nothing explains", "commands", func(e *Evidence) { e.Masters[0].Unexplained = 1 }},
		{"a client whose command nothing explains", "commands", func(e *Evidence) { e.Unexplained = []Client{{Evidence: "x"}} }},
		{"a client of another database", "commands", func(e *Evidence) { e.Unexplained = []Client{{Evidence: "x", DB: 5}} }},
		{"a denial on a lock key", "denials", func(e *Evidence) { e.Masters[0].LogDenied = 1 }},
		{"a value that was written", "values", func(e *Evidence) { e.Values.Changed = 1 }},
		{"a member at stage legacy", "members", func(e *Evidence) { e.Namespace.Legacy = 1 }},
		{"a line that could not be read", "commands", func(e *Evidence) { e.Masters[0].Commands[2].Unclear = 1 }},
		{"MONITOR that shows another number", "commands", func(e *Evidence) { e.Masters[0].Commands[2].Unmatched = 1 }},
		{"a COMMAND table that could not be read", "commands", func(e *Evidence) { e.Masters[0].Writes = 0 }},
		{"more that were watched than ran", "commands", func(e *Evidence) { e.Masters[0].Commands[0].Watched++ }},
		{"a denied SET, on a key that nobody tells", "denials", func(e *Evidence) { e.Masters[0].LogUntold = 1 }},
		{"a denied SETNX", "denials", func(e *Evidence) { e.Masters[0].Commands[0].Denied = 1 }},
		{"two denied, one of them on another key", "denials", func(e *Evidence) { e.Masters[0].Commands[0].Denied, e.Masters[0].Commands[0].Elsewhere = 2, 1 }},
		{"SET denied, and SETNX on another key", "denials", func(e *Evidence) { e.Masters[0].Commands[2].Denied, e.Masters[0].Commands[0].Elsewhere = 1, 1 }},
		{"a redirect, and a refusal", "denials", func(e *Evidence) {
			e.Masters[0].Commands[2].Denied, e.Masters[0].Redirected, e.Masters[0].Refused = 1, 2, 1
		}},
		{"a redirect, without ACL LOG", "denials", func(e *Evidence) {
			e.Masters[0].Commands[2].Denied, e.Masters[0].Redirected, e.Masters[0].LogRead = 1, 1, false
		}},
		{"more denied than redirected", "denials", func(e *Evidence) { e.Masters[0].Commands[2].Denied, e.Masters[0].Redirected = 3, 2 }},
		{"SETNX renamed", "denials", func(e *Evidence) { e.Masters[0].Named = false }},
		{"6.2 without ACL LOG", "denials", func(e *Evidence) { e.Masters[0].Version, e.Masters[0].LogRead = "6.2.11", false }},
		{"6.0 without ACL LOG", "denials", func(e *Evidence) {
			e.Masters[0].Version, e.Masters[0].LogRead, e.Masters[0].CountsDenied = "6.0.16", false, false
		}},
		{"6.0 with an ACL LOG that keeps nothing", "denials", func(e *Evidence) { e.Masters[0].Version, e.Masters[0].LogLength = "6.0.16", 0 }},
		{"7.0 that counts no denials, without ACL LOG", "denials", func(e *Evidence) { e.Masters[0].CountsDenied, e.Masters[0].LogRead = false, false }},
		{"5.0 that refused writes", "denials", func(e *Evidence) {
			e.Masters[0].Version, e.Masters[0].CountsDenied, e.Masters[0].Refuses = "5.0.6", false, "its memory is full"
		}},
		{"no version", "denials", func(e *Evidence) { e.Masters[0].Version = "" }},
		{"no census at the start", "values", func(e *Evidence) { e.Values.StartWhole = false }},
		{"no census at the end", "values", func(e *Evidence) { e.Values.EndWhole = false }},
		{"a value live at the start", "values", func(e *Evidence) { e.Values.HeldBefore = []string{"lock.order.1"} }},
		{"a value live at the end", "values", func(e *Evidence) { e.Values.HeldAfter = []string{"lock.order.1"} }},
		{"no member that reports", "members", func(e *Evidence) { e.Namespace.Living = 0 }},
		{"a record that changed", "members", func(e *Evidence) { e.Namespace.Same = false }},
		{"a record without epoch", "members", func(e *Evidence) { e.Namespace.Epoch = 0 }},
	} {
		e := clean()
		c.but(&e)
		assert.Equal(t, []string{c.open}, openOf(e), c.what)
		verdict, why, _ := Judge(e)
		assert.Equal(t, Inconclusive, verdict, c.what)
		assert.NotEmpty(t, why, c.what)

		second := clean() // what is wrong with one master is wrong, wherever it stands
		second.Masters = append(second.Masters, e.Masters...)
		if c.open == "masters" || c.open == "counters" || c.open == "commands" || c.open == "denials" {
			second.MastersSame, second.Unexplained = e.MastersSame, e.Unexplained
			assert.Equal(t, []string{c.open}, openOf(second), "%s: the second master", c.what)
		}
		e.Seen = []Client{{Evidence: "x"}}
		verdict, _, _ = Judge(e)
		assert.Equal(t, Seen, verdict, "%s: what was seen decides", c.what)
	}

	for _, c := range []struct {
		what string
		but  func(e *Evidence)
	}{
		{"no namespace", func(e *Evidence) { e.Namespace = nil }},
		{"no patterns and no namespace: every key is a lock key", func(e *Evidence) { e.Namespace, e.Patterns = nil, nil }},
		{"wider patterns", func(e *Evidence) { e.Patterns = []string{"x", "lock.*"}; e.Matched = e.Patterns }},
		{"MONITOR off, and all at rest", func(e *Evidence) {
			e.Masters[0].WatchedSeconds = 0
			for i := range e.Masters[0].Commands {
				e.Masters[0].Commands[i].Run, e.Masters[0].Commands[i].Watched = 0, 0
			}
		}},
		{"SETNX and SET under rules", func(e *Evidence) {
			e.Masters[0].Commands[0].Run, e.Masters[0].Commands[2].Run, e.Masters[0].Ruled = 500, 5000, []string{"setnx", "set", "hset"}
		}},
		{"denied on other keys only", func(e *Evidence) { e.Masters[0].Commands[0].Denied, e.Masters[0].Commands[0].Elsewhere = 2, 2 }},
		{"redirects only", func(e *Evidence) { e.Masters[0].Commands[2].Denied, e.Masters[0].Redirected = 2, 2 }},
		{"6.0 with ACL LOG", func(e *Evidence) {
			e.Masters[0].Version, e.Masters[0].CountsDenied, e.Masters[0].LogLength = "6.0.16", false, 128
		}},
		{"5.0, which has no ACL", func(e *Evidence) {
			e.Masters[0].Version, e.Masters[0].CountsDenied, e.Masters[0].LogRead = "5.0.6", false, false
		}},
	} {
		e := clean()
		c.but(&e)
		verdict, why, _ := Judge(e)
		assert.Equal(t, NoneSeen, verdict, "%s: %s", c.what, why)
	}
}

// TestMastersThatDoNotAgree: a master that is cut off from the others names itself, and not the one that has taken its place.
func TestMastersThatDoNotAgree(t *testing.T) {
	for second, open := range map[string][]string{"epoch 6, 3 SETSLOT, 1 ASK": nil, "epoch 7, 0 SETSLOT, 0 ASK": {"masters"}} {
		e := clean()
		e.Masters[0].Moves = "epoch 6, 0 SETSLOT, 0 ASK"
		e.Masters = append(e.Masters, e.Masters[0])
		e.Masters[1].Addr, e.Masters[1].Moves = "10.0.0.2:6379", second
		assert.Equal(t, open, openOf(e), second)
	}
}

// TestNothingLookedAtIsNothingShown takes away each field of the evidence in turn: what was not looked at never
// leads to none-seen, unless it is a fault that did not happen or a part of the question.
// TestOffersOfSlots: a server that does not count what would show that another node served slots leaves a risk, and the certificate says so.
func TestOffersOfSlots(t *testing.T) {
	const cluster = "epoch 6, 0 SETSLOT, 0 ASK"
	for _, c := range []struct {
		version, moves string
		risk           bool
	}{{"5.0.14", cluster, true}, {"6.0.16", cluster, true}, {"6.2.11", cluster, false}, {"7.0.15", cluster, false}, {"6.0.16", "no cluster", false}} {
		e := clean()
		e.Masters[0].Version, e.Masters[0].Moves = c.version, c.moves
		assert.Equal(t, c.risk, strings.Contains(strings.Join(risksOf(&e, NoneSeen), "\n"), "offered slots"), c.version)
	}
}

func TestNothingLookedAtIsNothingShown(t *testing.T) {
	assert.Equal(t, []string{"window", "masters", "counters", "commands", "denials", "values"}, openOf(Evidence{}))
	e := clean()
	e.Masters = []Master{{}}
	assert.Equal(t, []string{"counters", "commands", "denials"}, openOf(e))

	text, err := json.Marshal(clean())
	require.NoError(t, err)
	// Without these the question or the fault is another one.
	fine := []string{"asked_seconds", "patterns", "seen", "masters.addr", "masters.acl_log_untold", "masters.acl_log_length", "masters.acl_log_read",
		"masters.watched_seconds", "masters.unexplained", "masters.commands", "database", "masters.acl_log_denied", "masters.redirected", "masters.refused", "namespace", "namespace.legacy_members", "values.changed", "namespace.since", "values.before", "values.held_before", "values.held_after"}
	var all map[string]any
	require.NoError(t, json.Unmarshal(text, &all))
	var paths []string
	for name, v := range all {
		paths = append(paths, name)
		if list, ok := v.([]any); ok && name == "masters" {
			v = list[0]
		}
		if inner, ok := v.(map[string]any); ok {
			for field := range inner {
				paths = append(paths, name+"."+field)
			}
		}
	}
	require.Greater(t, len(paths), 25)
	for _, path := range paths {
		var doc map[string]any
		require.NoError(t, json.Unmarshal(text, &doc))
		outer, inner, nested := strings.Cut(path, ".")
		switch part := doc[outer].(type) {
		case []any:
			if nested {
				delete(part[0].(map[string]any), inner)
			}
		case map[string]any:
			if nested {
				delete(part, inner)
			}
		}
		if !nested {
			delete(doc, outer)
		}
		without, err := json.Marshal(doc)
		require.NoError(t, err)
		var e Evidence
		require.NoError(t, json.Unmarshal(without, &e))
		verdict, why, _ := Judge(e)
		assert.Equal(t, slices.Contains(fine, path), verdict == NoneSeen, "%s: %s", path, why)
	}
}

// ofMembers is evidence that only members locked by a handover's Old.
func ofMembers() Evidence {
	e := clean()
	e.OnlyMembers, e.Values = true, Values{}
	e.Namespace.OldMark, e.Namespace.MarkHere = "6526d149e5d3cb28", "6526d149e5d3cb28"
	e.Masters[0].Members = 3161
	return e
}

func TestJudgeOnlyMembers(t *testing.T) {
	verdict, why, obligations := Judge(ofMembers())
	assert.Equal(t, NoneSeen, verdict, why)
	assert.Len(t, obligations, len(duties)-2, "neither values nor members of a namespace of old clients")
	assert.Equal(t, []string{"window", "masters", "counters", "commands", "denials", "handover"}, openOf(Evidence{OnlyMembers: true}))
	for _, c := range []struct {
		what, open string
		but        func(e *Evidence)
	}{
		{"a stranger", "commands", func(e *Evidence) { e.Unexplained = []Client{{Addr: "10.0.0.9:1"}} }},
		{"a stranger who is counted alone", "commands", func(e *Evidence) { e.Masters[0].Unexplained = 1 }},
		{"a gap", "commands", func(e *Evidence) { e.Masters[0].Commands[0].Run++ }},
		{"nobody asked the record", "handover", func(e *Evidence) { e.Namespace = nil }},
		{"a record that changed", "handover", func(e *Evidence) { e.Namespace.Same = false }},
		{"no member reports", "handover", func(e *Evidence) { e.Namespace.Living = 0 }},
		{"another server", "handover", func(e *Evidence) { e.Namespace.MarkHere = "d96c7bf845cc904b" }},
		{"a server without a mark", "handover", func(e *Evidence) { e.Namespace.MarkHere = "" }},
		{"a record without an Old", "handover", func(e *Evidence) { e.Namespace.OldMark, e.Namespace.MarkHere = "", "" }},
		{"a library's Old, whose server no member used", "handover", func(e *Evidence) {
			e.Namespace.OldMark, e.Namespace.OldName, e.Masters[0].Members = "", "redsync at a", 0
		}},
	} {
		e := ofMembers()
		c.but(&e)
		assert.Equal(t, []string{c.open}, openOf(e), c.what)
	}
	p := Purpose{Namespace: "orders", Epoch: 3, Since: since, Patterns: []string{"lock.order.*"}, Now: ended, MaxAge: time.Hour, OnlyMembers: true}
	assert.NoError(t, Certify(ofMembers()).Supports(p))
	assert.ErrorIs(t, Certify(clean()).Supports(p), ErrNamespace, "that no old client was seen says nothing of other members")
	p.OnlyMembers = false
	assert.ErrorIs(t, Certify(ofMembers()).Supports(p), ErrNamespace)
}

func TestSupports(t *testing.T) {
	purpose := func() Purpose {
		return Purpose{
			Namespace: "orders", Epoch: 3, Since: since, Patterns: []string{"lock.order.*"}, Longest: 30 * time.Second,
			Now: ended.Add(time.Hour), MaxAge: 24 * time.Hour,
		}
	}
	var text bytes.Buffer
	require.NoError(t, Certify(clean()).Write(&text))
	file := filepath.Join(t.TempDir(), "c.json")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	c, err := Load(file)
	require.NoError(t, err)
	assert.NoError(t, c.Supports(purpose()), "through a file")

	for _, x := range []struct {
		what string
		want error
		but  func(c *Certificate, p *Purpose)
	}{
		{"another namespace", ErrNamespace, func(c *Certificate, p *Purpose) { p.Namespace = "bills" }},
		{"another epoch", ErrNamespace, func(c *Certificate, p *Purpose) { p.Epoch = 4 }},
		{"another server", ErrNamespace, func(c *Certificate, p *Purpose) { p.Since = since.Add(time.Millisecond) }},
		{"about no namespace", ErrNamespace, func(c *Certificate, p *Purpose) { c.Evidence.Namespace = nil }},
		{"too old", ErrStale, func(c *Certificate, p *Purpose) { p.Now = ended.Add(25 * time.Hour) }},
		{"from the future", ErrStale, func(c *Certificate, p *Purpose) { p.Now = ended.Add(-2 * time.Minute) }},
		{"a silence shorter than the shortest lease", ErrShort, func(c *Certificate, p *Purpose) { p.Longest = time.Hour }},
		{"patterns that the record has now", ErrVerdict, func(c *Certificate, p *Purpose) { p.Patterns = []string{"lock.*"} }},
		{"a verdict by hand", ErrVerdict, func(c *Certificate, p *Purpose) { c.Evidence.Finished = false }},
		{"a verdict that the evidence is better than", ErrVerdict, func(c *Certificate, p *Purpose) { c.Verdict = Inconclusive }},
		{"a client in the evidence", ErrVerdict, func(c *Certificate, p *Purpose) { c.Evidence.Seen = []Client{{}} }},
		{"no evidence", ErrNamespace, func(c *Certificate, p *Purpose) { c.Evidence = Evidence{} }},
	} {
		c, p := Certify(clean()), purpose()
		x.but(&c, &p)
		assert.ErrorIs(t, c.Supports(p), x.want, x.what)
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"verdict":"none-seen"}`), 0o600))
	_, err = Load(file)
	assert.Error(t, err)
}

func TestBroken(t *testing.T) {
	info := func(lines ...string) reading {
		return readInfo("# Server\r\nrun_id:a\r\nrole:master\r\n# Commandstats\r\n" + strings.Join(lines, "\r\n") + "\r\n")
	}
	before := []string{"cmdstat_echo:calls=7,usec=9,usec_per_call=1.0,rejected_calls=0,failed_calls=0", "cmdstat_object|help:calls=1,usec=3,usec_per_call=3.0", "total_net_input_bytes:100\r\nmaster_replid:a7\r\nmaster_replid2:00\r\nconnected_slaves:1"}
	for _, c := range []struct {
		what, want string
		after      []string
	}{
		{"a quiet interval", "", []string{"cmdstat_echo:calls=8", before[1], before[2]}},
		{"others send ECHO too", "", []string{"cmdstat_echo:calls=80", before[1], before[2], "cmdstat_config|set:calls=1"}},
		{"another run id", "another run id", []string{"cmdstat_echo:calls=8", before[1], before[2], "run_id:b"}},
		{"another role", "role", []string{"cmdstat_echo:calls=8", before[1], before[2], "role:slave"}},
		{"a master that was a replica meanwhile", "another server was the master", []string{"cmdstat_echo:calls=8", before[1], before[2], "master_replid:b7", "master_replid2:a7"}},
		{"a master without replicas for an hour", "", []string{"cmdstat_echo:calls=8", before[1], before[2], "master_replid:b7", "master_replid2:00"}},
		{"a reset", "reset", []string{"cmdstat_echo:calls=1", "cmdstat_config|resetstat:calls=1"}},
		{"a reset, counted like the one before", "reset", []string{"cmdstat_echo:calls=1"}},
		{"a reset that many ECHO hide", "object|help", []string{"cmdstat_echo:calls=90", before[2]}},
		{"a reset that all commands hide", "total_net_input_bytes", []string{"cmdstat_echo:calls=90", "cmdstat_object|help:calls=2", "total_net_input_bytes:99"}},
		{"counters that stand still", "ECHO", []string{before[0], before[1], before[2]}},
		{"no commandstats", "no commandstats", []string{before[2]}},
		{"a pause", "CLIENT PAUSE ran", []string{"cmdstat_echo:calls=8", before[1], before[2], "cmdstat_client|pause:calls=1"}},
		{"a failover", "FAILOVER ran", []string{"cmdstat_echo:calls=8", before[1], before[2], "cmdstat_failover:calls=1"}},
		{"a replica that left", "lost a replica", []string{"cmdstat_echo:calls=8", before[1], before[2], "connected_slaves:0"}},
		{"one that left and came back", "lost a replica", []string{"cmdstat_echo:calls=8", before[1], before[2], "sync_partial_ok:1"}},
		{"a new replica", "", []string{"cmdstat_echo:calls=8", before[1], before[2], "connected_slaves:2", "sync_full:1"}},
	} {
		got := broken(info(before...), info(c.after...))
		if c.want == "" {
			assert.Empty(t, got, c.what)
		} else {
			assert.Contains(t, got, c.want, c.what)
		}
	}
	r := info("redis_version:5.0.6", "cluster_enabled:1", "cmdstat_setnx:calls=3,usec=9,usec_per_call=3.0", "used_cpu_sys:1.5", "used_cpu_user:2")
	assert.Equal(t, "5.0.6", r.version)
	assert.True(t, r.cluster)
	assert.False(t, r.rejects)
	assert.EqualValues(t, 3, r.stats["setnx"].Calls)
	assert.InDelta(t, 3.5, r.cpu, 0.01)
	assert.Empty(t, r.refuses)
	for _, lines := range [][]string{
		{"loading:1"}, {"maxmemory:10", "used_memory:11", "maxmemory_policy:noeviction"}, {"rdb_last_bgsave_status:err"}, {"aof_enabled:1", "aof_last_write_status:err"}, {"min_slaves_good_slaves:0"},
	} {
		assert.NotEmpty(t, info(lines...).refuses, lines)
	}
}

// someTable is a part of a server's COMMAND table.
var someTable = func() traffic.Table {
	t := traffic.Table{}
	for _, row := range []struct {
		name, flag        string
		first, last, step int64
	}{
		{"get", "readonly", 1, 1, 1}, {"pttl", "readonly", 1, 1, 1}, {"echo", "fast", 0, 0, 0}, {"info", "stale", 0, 0, 0}, {"eval", "noscript", 0, 0, 0}, {"evalsha", "noscript", 0, 0, 0},
		{"fcall", "noscript", 0, 0, 0}, {"set", "write", 1, 1, 1}, {"setnx", "write", 1, 1, 1}, {"getset", "write", 1, 1, 1}, {"setex", "write", 1, 1, 1}, {"psetex", "write", 1, 1, 1},
		{"mset", "write", 1, -1, 2}, {"msetnx", "write", 1, -1, 2}, {"renamenx", "write", 1, 2, 1}, {"del", "write", 1, -1, 1},
	} {
		if err := t.Take([]any{[]byte(row.name), int64(-1), []any{[]byte(row.flag)}, row.first, row.last, row.step}); err != nil {
			panic(err)
		}
	}
	return t
}()

func TestTraffic(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ms := fmt.Sprint(now.Add(30 * time.Second).UnixMilli())
	ns := fmt.Sprint(now.Add(30 * time.Second).UnixNano())
	bridge := "6234567890123456789"
	digest := ""
	for _, s := range scripts.All() {
		if s.Name == "modern_release.lua" {
			digest = s.Digest
		}
	}
	require.NotEmpty(t, digest)
	for _, c := range []struct {
		what  string
		lines []string // addr and words
		form  string   // what is seen, empty for nothing
	}{
		{"SETNX", []string{`a "SETNX" "lock:1" "` + ms + `"`}, "SETNX"},
		{"in small letters", []string{`a "setnx" "lock:1" "1"`}, "SETNX"},
		{"on another key", []string{`a "SETNX" "cache:1" "` + ms + `"`}, ""},
		{"a plain SET", []string{`a "SET" "lock:1" "x"`}, "SET"},
		{"a plain SET with a TTL", []string{`a "SET" "lock:1" "x" "PX" "30000"`}, "SET"},
		{"GETSET of bytes", []string{`a "GETSET" "lock:1" "\xf6\x00"`}, "GETSET"},
		{"GETSET of a bridge value", []string{`a "GETSET" "lock:1" "` + bridge + `"`}, "GETSET"},
		{"SET NX", []string{`a "SET" "lock:1" "x" "nx"`}, "SET NX without TTL"},
		{"SET NX KEEPTTL", []string{`a "SET" "lock:1" "x" "KEEPTTL" "NX"`}, "SET NX without TTL"},
		{"a token", []string{`a "SET" "lock:1" "7f9c24e8-3b12-4fef-91e0-5b7e6c1d2a30" "NX" "PX" "30000"`}, ""},
		{"a modern token", []string{`a "SET" "lock:1" "` + bridge + `" "NX" "PX" "30000"`}, ""},
		{"an expiry with a TTL", []string{`a "SET" "lock:1" "` + ns + `" "PX" "30000" "NX"`}, "SET NX of an expiry"},
		{"a value NX", []string{`a "SET" "lock:1" "NX"`}, "SET"},
		{"a TTL that reads as NX", []string{`a "SET" "lock:1" "x" "EX" "NX"`}, "SET"},
		{"SET GET", []string{`a "SET" "lock:1" "x" "GET"`}, "SET GET"},
		{"a blind SET", []string{`a "SET" "lock:1" "` + ms + `"`}, "SET of an expiry"},
		{"seconds in 8 bytes, as ServiceStack's DistributedLock sets", []string{`a "SET" "lock:1" "\x1e\xf1Se\x00\x00\x00\x00"`}, "SET of an expiry"},
		{"seconds and a process", []string{`a "SET" "lock:1" "1700000030:4711"`}, "SET of an expiry"},
		{"SETEX of an expiry", []string{`a "SETEX" "lock:1" "30" "` + ms + `"`}, "SETEX of an expiry"},
		{"SETEX of something", []string{`a "SETEX" "lock:1" "30" "hello"`}, "SETEX"},
		{"PSETEX of an expiry", []string{`a "PSETEX" "lock:1" "30" "` + ms + `"`}, "PSETEX of an expiry"},
		{"MSET of an expiry", []string{`a "MSET" "x" "1" "lock:1" "` + ms + `"`}, "MSET"},
		{"MSET of something", []string{`a "MSET" "x" "1" "lock:1" "hello"`}, "MSET"},
		{"MSETNX", []string{`a "MSETNX" "x" "1" "lock:1" "hello"`}, "MSETNX"},
		{"RENAMENX to a lock", []string{`a "RENAMENX" "tmp" "lock:1"`}, "RENAMENX"},
		{"RENAMENX of a lock", []string{`a "RENAMENX" "lock:1" "tmp"`}, "RENAMENX"},
		{"a script", []string{`a "EVAL" "return 1" "1" "lock:1"`, `lua "setnx" "lock:1" "1"`}, "SETNX in a script"},
		{"a time beside a lock, by a script of ours", []string{`a "EVALSHA" "` + digest + `" "1" "lock:1"`, `lua "SET" "lock:{1}:share" "` + ms + `" "PX" "1000"`}, ""},
		{"a script of ours asks whether it may hand over", []string{`a "EVALSHA" "` + scripts.BridgeRelease.Digest + `" "1" "lock:1"`, `lua "SET" "lock:1" "7000000000000000001" "NX"`}, ""},
		{"the same, by a script of another", []string{`a "EVAL" "return 1" "1" "lock:1"`, `lua "SET" "lock:1" "7000000000000000001" "NX"`}, "SET NX without TTL in a script"},
		{"a time, by a script of another", []string{`a "EVALSHA" "` + strings.Repeat("0", 40) + `" "1" "lock:1"`, `lua "SET" "lock:1" "` + ms + `"`}, "SET of an expiry in a script"},
		{"reads", []string{`a "GET" "lock:1"`, `a "PTTL" "lock:1"`}, ""},
	} {
		var seen []sighting
		tr := reader{table: someTable, counts: counts{}, matches: func(key string) bool { return strings.HasPrefix(key, "lock:") }, saw: func(s sighting) { seen = append(seen, s) }}
		for _, l := range c.lines {
			addr, words, _ := strings.Cut(l, " ")
			tr.take(fmt.Sprintf("+1700000000.123456 [0 %s] %s\r\n", addr, words), false)
		}
		assert.Zero(t, tr.garbled, c.what)
		if c.form == "" {
			assert.Empty(t, seen, c.what)
			continue
		}
		if assert.Len(t, seen, 1, c.what) {
			assert.Equal(t, c.form, seen[0].form, c.what)
			assert.Equal(t, "a", seen[0].addr, c.what)
		}
	}
}

// TestMarks has the looks of two runs in one stream.
func TestMarks(t *testing.T) {
	tr := reader{table: someTable, counts: counts{}, prefix: "mine-", matches: func(string) bool { return false }}
	marks := func(lines ...string) (found []string) {
		for _, l := range lines {
			if mark := tr.take("+1700000000.123456 [0 "+l+"\r\n", false); mark != "" {
				found = append(found, fmt.Sprintf("%s %d", mark, tr.counts["setnx"].lines))
			}
		}
		return found
	}
	assert.Equal(t, []string{"mine-1 2"}, marks(
		`x:1] "SETNX" "a" "1"`, `a:1] "ECHO" "mine-1"`, `b:1] "ECHO" "theirs-1"`, `b:1] "INFO" "all"`, `x:1] "SETNX" "a" "1"`,
		`a:1] "INFO" "all"`, `x:1] "SETNX" "a" "1"`, `a:1] "INFO" "all"`))
	assert.Equal(t, []string{"mine-2 3"}, marks(`a:1] "ECHO" "mine-2"`, `b:1] "INFO" "all"`, `a:1] "INFO" "all"`))
	tr.take("+1700000000.123456 [0 x:1] \"SETNX\" \"a\" nonsense\r\n", false)
	assert.EqualValues(t, 1, tr.garbled, "a line that could be anything")
}

func TestCompareValues(t *testing.T) {
	live := value{Expires: "5", Held: true, Dialect: "jedis-ms"}
	over := value{Expires: "1", Dialect: "jedis-ms"}
	flag := value{Held: true}
	brief := value{Expires: "5", Held: true, TTL: true}
	for _, c := range []struct {
		what          string
		before, after map[string]value
		heldBefore    int
		heldAfter     int
		seen          string
	}{
		{"nothing", nil, nil, 0, 0, ""},
		{"live all the time", map[string]value{"k": live}, map[string]value{"k": live}, 1, 1, ""},
		{"it ran out within the window", map[string]value{"k": live}, map[string]value{"k": {Expires: "5"}}, 1, 0, ""},
		{"live, and deleted", map[string]value{"k": live}, nil, 1, 0, "deleted"},
		{"live, and over before the end: a bridge client took it over", map[string]value{"k": {Expires: "2", Held: true}}, nil, 1, 0, ""},
		{"live, and gone by its TTL or deleted", map[string]value{"k": brief}, nil, 1, 0, ""},
		{"over, and gone: a bridge client took it over", map[string]value{"k": over}, nil, 0, 0, ""},
		{"over all the time", map[string]value{"k": over}, map[string]value{"k": over}, 0, 0, ""},
		{"taken over", map[string]value{"k": over}, map[string]value{"k": live}, 0, 1, "written"},
		{"new", nil, map[string]value{"k": over}, 0, 0, "written"},
		{"a flag without TTL", map[string]value{"k": flag}, map[string]value{"k": flag}, 1, 1, ""},
		{"a new flag without TTL", nil, map[string]value{"k": flag}, 0, 1, ""},
	} {
		before, after, seen := compareValues(c.before, c.after, time.Unix(0, 3), func(id string) string { return id })
		assert.Len(t, before, c.heldBefore, c.what)
		assert.Len(t, after, c.heldAfter, c.what)
		if c.seen == "" {
			assert.Empty(t, seen, c.what)
		} else if assert.Len(t, seen, 1, c.what) {
			assert.Contains(t, seen[0].Evidence, c.seen, c.what)
		}
	}
}

// TestRulesThatChange lets rules count only where they stood from the start to the end.
func TestRulesThatChange(t *testing.T) {
	first, last := readInfo("cmdstat_acl|setuser:calls=1"), readInfo("cmdstat_acl|setuser:calls=1")
	assert.Equal(t, []string{"set"}, unchanged([]string{"set", "setnx"}, []string{"set"}, first, last))
	last = readInfo("cmdstat_acl|setuser:calls=2")
	assert.Empty(t, unchanged([]string{"set"}, []string{"set"}, first, last))
}
