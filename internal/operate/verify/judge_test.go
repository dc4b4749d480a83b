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

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/traffic"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
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
			CountsDenied: true, Named: true, LogRead: true,
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

// change makes evidence of other evidence, by assignments such as master.run_id="x"; finished=false.
func change(t *testing.T, e Evidence, assignments string) (changed Evidence) {
	text, err := json.Marshal(e)
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(text, &doc))
	for one := range strings.SplitSeq(assignments, "; ") {
		path, value, _ := strings.Cut(one, "=")
		at, names := doc, strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			switch {
			case name == "master":
				at = doc["masters"].([]any)[0].(map[string]any)
			case at["commands"] != nil && name != "commands":
				commands := at["commands"].([]any)
				at = commands[slices.IndexFunc(commands, func(c any) bool { return c.(map[string]any)["name"] == name })].(map[string]any)
			case name != "commands":
				at = at[name].(map[string]any)
			}
		}
		var v any
		require.NoError(t, json.Unmarshal([]byte(value), &v), one)
		at[names[len(names)-1]] = v
	}
	text, err = json.Marshal(doc)
	require.NoError(t, err)
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	require.NoError(t, in.Decode(&changed), assignments)
	return changed
}

// judged are the rows of a file of testdata with the evidence that each makes.
func judged(t *testing.T, file string, of func() Evidence, check func(open, what string, e Evidence)) {
	for _, row := range redistest.Rows(t, file) {
		what, assignments, found := strings.Cut(strings.Join(row[1:], " "), " | ")
		require.True(t, found, row)
		check(row[0], what, change(t, of(), assignments))
	}
}

func TestJudge(t *testing.T) {
	verdict, why, obligations := Judge(clean())
	assert.Equal(t, NoneSeen, verdict, why)
	assert.Len(t, obligations, len(duties)-1, "all but that of a handover")
	judged(t, "testdata/judge.txt", clean, func(open, what string, e Evidence) {
		verdict, why, _ := Judge(e)
		if open == "none-seen" {
			assert.Equal(t, NoneSeen, verdict, "%s: %s", what, why)
			return
		}
		assert.Equal(t, []string{open}, openOf(e), what)
		assert.Equal(t, Inconclusive, verdict, what)
		assert.NotEmpty(t, why, what)

		second := clean() // what is wrong with one master is wrong, wherever it stands
		second.Masters = append(second.Masters, e.Masters...)
		if slices.Contains([]string{"masters", "counters", "commands", "denials"}, open) {
			second.MastersSame, second.Unexplained = e.MastersSame, e.Unexplained
			assert.Equal(t, []string{open}, openOf(second), "%s: the second master", what)
		}
		e.Seen = []Client{{Evidence: "x"}}
		verdict, _, _ = Judge(e)
		assert.Equal(t, Seen, verdict, "%s: what was seen decides", what)
	})
}

// TestMastersThatDoNotAgree: a master that is cut off from the others names itself, and not the one that has taken its place.
func TestMastersThatDoNotAgree(t *testing.T) {
	for second, open := range map[string][]string{"epoch 6, 3 moves, 1 ASK": nil, "epoch 7, 0 moves, 0 ASK": {"masters"}} {
		e := clean()
		e.Masters[0].Moves = "epoch 6, 0 moves, 0 ASK"
		e.Masters = append(e.Masters, e.Masters[0])
		e.Masters[1].Addr, e.Masters[1].Moves = "10.0.0.2:6379", second
		assert.Equal(t, open, openOf(e), second)
	}
}

// TestOffersOfSlots: a server that does not count what would show that another node served slots leaves a risk, and the certificate says so.
func TestOffersOfSlots(t *testing.T) {
	const cluster = "epoch 6, 0 moves, 0 ASK"
	for _, c := range []struct {
		version, moves string
		risk           bool
	}{{"5.0.14", cluster, true}, {"6.0.16", cluster, true}, {"6.2.11", cluster, false}, {"7.0.15", cluster, false}, {"6.0.16", "no cluster", false}} {
		e := clean()
		e.Masters[0].Version, e.Masters[0].Moves = c.version, c.moves
		assert.Equal(t, c.risk, strings.Contains(strings.Join(risksOf(&e, NoneSeen), "\n"), "offered slots"), c.version)
	}
}

// TestNothingLookedAtIsNothingShown takes away each field of the evidence in turn: what was not looked at never
// leads to none-seen, unless it is a fault that did not happen or a part of the question.
func TestNothingLookedAtIsNothingShown(t *testing.T) {
	assert.Equal(t, []string{"window", "masters", "counters", "commands", "denials", "values"}, openOf(Evidence{}))
	e := clean()
	e.Masters = []Master{{}}
	assert.Equal(t, []string{"counters", "commands", "denials"}, openOf(e))

	text, err := json.Marshal(clean())
	require.NoError(t, err)
	// Without these the question or the fault is another one.
	fine := []string{"asked_seconds", "patterns", "seen", "masters.addr", "masters.acl_log_untold", "masters.acl_log_length", "masters.acl_log_read",
		"masters.unexplained", "masters.commands", "database", "masters.acl_log_denied", "masters.redirected", "masters.refused", "namespace", "namespace.legacy_members", "values.changed", "namespace.since", "values.before", "values.held_before", "values.held_after"}
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
	judged(t, "testdata/judge_members.txt", ofMembers, func(open, what string, e Evidence) {
		assert.Equal(t, []string{open}, openOf(e), what)
	})
	r := stages.Record{Namespace: "orders", Epoch: 3, Since: since, Patterns: []string{"lock.order.*"}, Handover: &stages.Halves{}}
	assert.NoError(t, Certify(ofMembers()).Supports(r, ended))
	assert.ErrorIs(t, Certify(clean()).Supports(r, ended), ErrNamespace, "that no old client was seen says nothing of other members")
	r.Handover = nil
	assert.ErrorIs(t, Certify(ofMembers()).Supports(r, ended), ErrNamespace)
}

func TestSupports(t *testing.T) {
	record := stages.Record{Namespace: "orders", Stage: stages.Bridge, Epoch: 3, Since: since, Patterns: []string{"lock.order.*"}, Longest: 30 * time.Second}
	var text bytes.Buffer
	require.NoError(t, Certify(clean()).Write(&text))
	file := filepath.Join(t.TempDir(), "c.json")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o600))
	c, err := Load(file)
	require.NoError(t, err)
	assert.NoError(t, c.Supports(record, ended.Add(time.Hour)), "through a file")

	for _, x := range []struct {
		what string
		want error
		but  func(c *Certificate, r *stages.Record, now *time.Time)
	}{
		{"another namespace", ErrNamespace, func(c *Certificate, r *stages.Record, now *time.Time) { r.Namespace = "bills" }},
		{"another epoch", ErrNamespace, func(c *Certificate, r *stages.Record, now *time.Time) { r.Epoch = 4 }},
		{"another server", ErrNamespace, func(c *Certificate, r *stages.Record, now *time.Time) { r.Since = since.Add(time.Millisecond) }},
		{"about no namespace", ErrNamespace, func(c *Certificate, r *stages.Record, now *time.Time) { c.Evidence.Namespace = nil }},
		{"too old", ErrStale, func(c *Certificate, r *stages.Record, now *time.Time) { *now = ended.Add(25 * time.Hour) }},
		{"too old, but shown before", nil, func(c *Certificate, r *stages.Record, now *time.Time) {
			*now, r.Stage = ended.Add(25*time.Hour), stages.Modern
		}},
		{"from the future", ErrFuture, func(c *Certificate, r *stages.Record, now *time.Time) { *now = ended.Add(-2 * time.Minute) }},
		{"a silence shorter than the shortest lease", ErrShort, func(c *Certificate, r *stages.Record, now *time.Time) { r.Longest = time.Hour }},
		{"patterns that the record has now", ErrVerdict, func(c *Certificate, r *stages.Record, now *time.Time) { r.Patterns = []string{"lock.*"} }},
		{"a verdict by hand", ErrVerdict, func(c *Certificate, r *stages.Record, now *time.Time) { c.Evidence.Finished = false }},
		{"a verdict that the evidence is better than", ErrVerdict, func(c *Certificate, r *stages.Record, now *time.Time) { c.Verdict = Inconclusive }},
		{"a client in the evidence", ErrVerdict, func(c *Certificate, r *stages.Record, now *time.Time) { c.Evidence.Seen = []Client{{}} }},
		{"no evidence", ErrNamespace, func(c *Certificate, r *stages.Record, now *time.Time) { c.Evidence = Evidence{} }},
	} {
		c, r, now := Certify(clean()), record, ended.Add(time.Hour)
		x.but(&c, &r, &now)
		assert.ErrorIs(t, c.Supports(r, now), x.want, x.what)
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
	first := []string{"{echo}", before[0], "{help}", before[1], "{rest}", before[2]}
	for _, row := range redistest.Rows(t, "testdata/counters.txt") {
		cells := strings.Split(strings.Join(row, " "), " | ")
		require.Len(t, cells, 3, row)
		got := broken(info(before...), info(strings.NewReplacer(first...).Replace(strings.ReplaceAll(cells[2], " ", "\r\n"))))
		if cells[0] == "nothing" {
			assert.Empty(t, got, row)
		} else {
			assert.Contains(t, got, cells[0], row)
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
		{"mset", "write", 1, -1, 2}, {"msetnx", "write", 1, -1, 2}, {"renamenx", "write", 1, 2, 1}, {"del", "write", 1, -1, 1}, {"pexpire", "write", 1, 1, 1}, {"zrem", "write", 1, 1, 1},
	} {
		if err := t.Take([]any{[]byte(row.name), int64(-1), []any{[]byte(row.flag)}, row.first, row.last, row.step}); err != nil {
			panic(err)
		}
	}
	return t
}()

// TestLines has what MONITOR shows of a client at address a: it is seen, as the form that stands first, or explained.
func TestLines(t *testing.T) {
	expires := time.Unix(1_700_000_030, 0)
	stands := []string{"{ms}", fmt.Sprint(expires.UnixMilli()), "{ns}", fmt.Sprint(expires.UnixNano()), "{unknown}", strings.Repeat("0", 40)}
	for _, s := range scripts.All() {
		stands = append(stands, "{"+s.Name+"}", s.Digest)
	}
	fill := strings.NewReplacer(stands...)
	for _, row := range redistest.Rows(t, "testdata/lines.txt") {
		cells := strings.Split(strings.Join(row, " "), " | ")
		require.Len(t, cells, 3, row)
		tr := reader{table: someTable, counts: counts{}, matches: func(key string) bool { return strings.HasPrefix(key, "lock:") }}
		for line := range strings.SplitSeq(fill.Replace(cells[2]), " ; ") {
			words := strings.Fields(line)
			tr.take(fmt.Sprintf("+1700000000.123456 [0 %s] \"%s\"\r\n", words[0], strings.Join(words[1:], `" "`)), false)
		}
		assert.Zero(t, tr.garbled, row)
		if cells[0] == "nothing" {
			assert.Empty(t, tr.touches, row)
		} else if did := tr.touches[place{addr: "a"}]; assert.NotNil(t, did, row) {
			assert.Equal(t, map[string]int64{cells[0]: 1}, did.forms, row)
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

// TestCompareValues has what stood on a key at the start and at the end; how many were held then and now, and what that shows of an old client.
func TestCompareValues(t *testing.T) {
	values := map[string]value{
		"live": {Expires: 5, Held: true, Dialect: "jedis-ms"}, "over": {Expires: 1, Dialect: "jedis-ms"}, "flag": {Held: true},
		"brief": {Expires: 5, Held: true, TTL: true}, "ended": {Expires: 5}, "ending": {Expires: 2, Held: true},
	}
	on := func(name string) map[string]value {
		if v, there := values[name]; there {
			return map[string]value{"a k": v}
		}
		return nil
	}
	for _, row := range redistest.Rows(t, "testdata/values.txt") {
		before, after, seen := compareValues(on(row[0]), on(row[1]), time.Unix(0, 3))
		shows := "-"
		if len(seen) > 0 {
			shows = seen[0].Evidence
		}
		assert.Equal(t, row[2:4], []string{fmt.Sprint(len(before)), fmt.Sprint(len(after))}, row)
		assert.Contains(t, shows, row[4], row)
		assert.Equal(t, row[4] == "-", len(seen) == 0, row)
	}
}

// TestRulesThatChange lets rules count only where they stood from the start to the end.
func TestRulesThatChange(t *testing.T) {
	first, last := readInfo("cmdstat_acl|setuser:calls=1"), readInfo("cmdstat_acl|setuser:calls=1")
	assert.Equal(t, []string{"set"}, unchanged([]string{"set", "setnx"}, []string{"set"}, first, last))
	last = readInfo("cmdstat_acl|setuser:calls=2")
	assert.Empty(t, unchanged([]string{"set"}, []string{"set"}, first, last))
}
