package sidecar_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockmigrate/lockmigrate/internal/evidence/redistest"
	"github.com/lockmigrate/lockmigrate/internal/operate/sidecar/proxy"
	"github.com/lockmigrate/lockmigrate/internal/scripts"
)

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
