package sidecar_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/redis/scripts"
	"github.com/lockmigrate/lockmigrate/internal/stages"
)

func (r *run) compare(views [2][2]view) {
	for i, b := range views[0] {
		v := views[1][i]
		switch {
		case r.over:
		case i == 0 && r.lost && v.what == "token":
			r.fail(fmt.Sprintf("after step %d a token stands there for a GETSET that lost: %+v", r.next, v))
		case same(b, v):
		case v.kind == "none" && b.kind == "string" && b.ttl < 0 && r.ends(b.value):
			r.differ("D1")
		case b.kind == "none" && v.what == "token" && r.guarded:
			r.differ("D10")
		case v.what == "kept" && b.kind == "string" && r.legacy(b.value) && r.ends(b.value):
			r.differ("D4")
		default:
			r.fail(fmt.Sprintf("after step %d %s is %+v on the bare server and %+v behind a sidecar", r.next, locks[i], b, v))
		}
	}
	for _, v := range views[1] {
		r.guarded = r.guarded || r.direct && v.kind == "none" && v.guard != ""
	}
	r.lost = false
	r.site.compared++
}

var (
	elsewhere = regexp.MustCompile(`( script: [0-9a-f]{40}, on @?user_script:\d+\.|user_script:\d+: |script: [0-9a-f]{40})`)
	farNumber = regexp.MustCompile(`(^|\D)[5-9]\d{18}(\D|$)`)
)

// judge compares the replies to a step.
func (r *run) judge(s *step, before [2]view, got [2][]string) {
	if s.client < 0 {
		name, what := s.commands[0][0], before[0].what
		r.direct = r.direct || name != "SETNX" && (what == "token" || what == "kept")
		switch {
		case name == "DEL" && what == "kept":
			r.differ("D10")
		case name == "SETNX" && what == "kept":
			r.differ("D6")
		case what == "token" && r.ends(before[0].value):
			r.differ("D1")
		}
		return
	}
	for i, c := range s.commands {
		if c[0] == "EXEC" && got[0][i] != "nil" && got[1][i] != "nil" {
			inside := s.commands[1:i]
			all := [2][]string{strings.Split(strings.Trim(got[0][i], "[]"), "|"), strings.Split(strings.Trim(got[1][i], "[]"), "|")}
			if len(all[0]) == len(all[1]) && len(all[0]) <= len(inside) {
				for n := range all[0] {
					r.reply(s, inside[n], before, all[0][n], all[1][n])
				}
				continue
			}
		}
		r.reply(s, c, before, got[0][i], got[1][i])
	}
}

func (r *run) reply(s *step, c []string, before [2]view, bare, behind string) {
	name := strings.ToUpper(c[0])
	v, me := before[0], r.site.owners[r.services[s.client]]
	if slices.Contains(c, "L") && (!slices.Contains(c, "K") || before[1].owner != "" && before[1].owner != me) {
		v = before[1]
	}
	if r.own {
		switch plain := slices.Contains([]string{"GET", "SETNX", "GETSET", "DEL", "UNLINK"}, name); {
		case name == "WATCH":
			r.dirtied = false
		case !plain && (v.what == "token" || v.what == "kept"):
			r.dirtied = true
		}
	}
	swaps := name == "GETSET" || name == "SET" && slices.Contains(c, "GET")
	if swaps && len(s.commands) == 1 && v.what == "raw" && r.site.dialect != nil {
		at, ok := r.site.dialect.Written(bare)
		r.lost = ok && at.Time().After(r.site.now().Add(time.Second))
	}
	if r.over || bare == behind || strings.HasPrefix(name, "EVAL") && elsewhere.ReplaceAllString(bare, "") == elsewhere.ReplaceAllString(behind, "") {
		return
	}
	theirs := (v.what == "token" || v.what == "kept") && v.owner != me
	far, nx := farNumber.MatchString(behind), name == "SETNX" || name == "SET" && slices.ContainsFunc(c[3:], func(w string) bool { return strings.EqualFold(w, "NX") })
	no := behind == "0" || behind == "nil"
	switch {
	case theirs && strings.Contains(behind, "would damage a lock that another holds"),
		theirs && slices.Contains([]string{"DEL", "UNLINK", "EXPIRE", "PEXPIRE", "PERSIST"}, name) && (behind == "0" || behind == "1" && bare == "2"),
		swaps && (theirs || v.guard != "" && v.guard != me) && far, theirs && strings.HasPrefix(name, "EVAL"):
		r.differ("D3")
	case theirs && name == "GET" && far:
		if v.what == "kept" {
			r.differ("D6")
		}
	case nx && no && (theirs && v.what == "kept" || v.kind == "none" && (v.gap || v.guard == "breath") || r.site.stage == stages.Bridge && len(s.commands) > 1):
		r.differ("D6")
	case r.direct && v.guard != "" && (v.kind == "none" || v.what == "raw" && len(s.commands) > 1): // ... or it goes within the transaction
		r.differ("D10")
	case rounded(bare, behind):
		r.differ("D11")
	case (nx && no || swaps && bare == "nil" && far) && r.ends(r.word(c[2], true)):
		r.differ("D2")
	case v.what == "token" && v.ttl < 0 && r.ends(v.value):
		r.differ("D1")
	case v.what == "raw" && v.ttl < 0 && r.legacy(v.value) && far && (swaps || name == "GET" && r.ends(v.value)):
		if swaps {
			r.differ("D4")
		}
	case len(s.commands) > 1 && v.what == "raw" && v.ttl < 0 && r.legacy(v.value) && r.ends(v.value): // taken over within a transaction
		r.differ("D4")
	case len(s.commands) > 1 && slices.ContainsFunc(slices.Concat(s.commands...), func(w string) bool { return w == "@-5" }) && r.site.dialect != nil:
		r.differ("D2")
	case len(s.commands) > 1 && far && r.legacy(bare) && (swaps || name == "GET" && r.ends(bare)):
		r.differ("D4")
	case swaps && (v.kind == "none" || len(s.commands) > 1) && bare == "nil" && far && r.losesOnNothing():
		r.differ("D5")
	case swaps && bare == "nil" && far && (v.kind == "none" && v.gap || r.site.stage == stages.Bridge && len(s.commands) > 1): // after a DEL
		r.differ("D6")
	case name == "EXEC" && behind == "nil" && r.dirtied:
		r.differ("D9")
	case nx && no && r.site.stage == stages.Bridge && r.site.dialect != nil && r.site.dialect.SettlesFree():
		r.differ("D12")
	default:
		r.fail(fmt.Sprintf("%q is answered %q by the bare server and %q behind a sidecar; before it stood there %+v", c, bare, behind, v))
	}
}

// losesOnNothing tells whether a GETSET of the service on an absent key would lose: D5 names the dialects.
func (r *run) losesOnNothing() bool {
	return r.site.dialect == nil || slices.Contains([]string{"jedis-ms", "jedis-uuid", "redis-doc", "servicestack", "unix-ns"}, r.site.dialect.Name)
}

// rounded tells whether a reply is another one, as a number of Lua.
func rounded(bare, behind string) bool {
	n, err := strconv.ParseInt(bare, 10, 64)
	return err == nil && max(n, -n) > 1<<53 && behind == fmt.Sprintf("%.0f", float64(n))
}

// TestTwinFinds plants faults that a sidecar once had. The twin finds each, and tells the first program that does.
func TestTwinFinds(t *testing.T) {
	redistest.Need(t, redistest.Redis)
	type edit struct {
		script   *scripts.Script
		old, new string
	}
	// in changes scripts: what a sidecar sends has the changed text.
	in := func(edits ...edit) func(*run, *wireConn, int, []string) bool {
		return func(r *run, conn *wireConn, client int, words []string) bool {
			args := [][]byte{}
			for _, w := range words {
				args = append(args, []byte(w))
			}
			if _, known := r.site.commands[strings.ToUpper(words[0])]; !known || len(words) < 2 {
				return false
			}
			verdict, out := r.site.services[r.services[client]].Rewrite(r.clients[client], args, nil)
			if verdict != proxy.Replace {
				return false
			}
			request := string(out)
			for _, e := range edits {
				text := e.script.Bare()
				if !strings.Contains(request, text) {
					continue
				}
				require.Contains(t, text, e.old)
				changed := strings.Replace(text, e.old, e.new, 1)
				request = strings.Replace(request, "$"+strconv.Itoa(len(text))+"\r\n"+text, "$"+strconv.Itoa(len(changed))+"\r\n"+changed, 1)
			}
			conn.out = append(conn.out, request...)
			return true
		}
	}
	// instead sends a script in place of a command.
	instead := func(command string, words int, script string) func(*run, *wireConn, int, []string) bool {
		return func(r *run, conn *wireConn, _ int, sent []string) bool {
			if strings.TrimPrefix(sent[0], "P") != command || len(sent) != words || !strings.Contains(sent[1], r.site.namespace()) {
				return false
			}
			conn.send("EVAL", script, "1", sent[1], sent[len(sent)-1], strconv.FormatInt(r.site.now().UnixMilli(), 10))
			return true
		}
	}
	again := in(edit{scripts.SidecarTake, "local careful =", "if s.text == written and whose(s) == 'mine' then return granted() end\nlocal careful ="})
	owed := in(
		edit{scripts.SidecarTake, "return reply or granted()", "redis.call('INCR', record .. ':owed') redis.call('EXPIRE', record .. ':owed', 60)\nreturn reply or granted()"},
		edit{scripts.SidecarDel, "local what, seen, owner = whose(s)", "if redis.call('DECR', record .. ':owed') > 0 then return 1 end redis.call('DEL', record .. ':owed')\nlocal what, seen, owner = whose(s)"})
	for _, c := range []struct {
		fault, site string
		plant       func(*run, *wireConn, int, []string) bool
	}{
		{"S1: the same text again is the same attempt", "bridge/redispy-float", again},
		{"S2: the same text again is the same attempt", "modern/unix-ns", again},
		{"S3: at stage legacy EXPIRE knows only the record", "legacy/jedis-ms", instead("EXPIRE", 3, "return 0")},
		{"a token for a GETSET that lost, which outlasts the holder's DEL", "bridge/redispy-float in jedis-ms", in(edit{scripts.SidecarTake, "if due and grace >= 0 and now > due + grace then return", "do return"})},
		{"S4: DEL leaves a loser's value", "bridge/redispy-float", in(edit{scripts.SidecarDel, "what == 'raw' and", "what == 'raw' and not ours and"})},
		{"S5: UNLINK leaves what a script took", "modern/none", in(edit{scripts.SidecarDel, "what == 'raw' and redis.call('DEL', key) or 0", "0"})},
		{"S5: EXPIRE does not know what a script took", "modern/none", in(edit{scripts.SidecarRun, "if what == 'theirs' and mode == 'spare'", "if (what == 'theirs' or what == 'raw') and mode == 'spare'"})},
		{"S5: GET does not show what a script took", "bridge/jedis-ms", in(edit{scripts.SidecarGet, "if what == 'theirs' then return far", "if what == 'theirs' or what == 'raw' then return far"})},
		{"S6: a DEL is owed for each grant", "bridge/jedis-ms", owed},
		{"S7: the record remembers each grant", "modern/jedis-ms", in(edit{scripts.SidecarTake, "return reply or granted()", "redis.call('HSET', record, 'owed', (redis.call('HGET', record, 'owed') or '') .. now .. ',')\nreturn reply or granted()"})},
		{"S8: at stage legacy GET does not show a time that is over", "legacy/jedis-ms",
			instead("GET", 2, "local v = redis.call('GET', KEYS[1]) if v and tonumber(v) and tonumber(v) < tonumber(ARGV[2]) then return '7000000000000000000' end return v")},
		{"S12: at stage legacy SET asks what it overwrites", "legacy/jedis-ms", instead("SET", 3, "redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], ARGV[1])")},
		{"S12: at stage legacy DEL compares", "legacy/jedis-ms", instead("DEL", 2, "if tonumber(redis.call('GET', KEYS[1]) or 0) == 2 then return 0 end return redis.call('DEL', KEYS[1])")},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.sites(t, c.site)[0]
			s.plant = c.plant
			found := s.search(t, 1, 3000, map[string]int{})
			require.NotNil(t, found)
			t.Logf("%s\n%s", found.why, found)
		})
	}
}
